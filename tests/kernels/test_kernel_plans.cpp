// The choice of quantizer kernels and of fused kernels is plain data, the same without a device.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "emulation/spec/current_scaling.hpp"
#include "kernels/plan/fusion.hpp"
#include "kernels/plan/limits.hpp"
#include "kernels/plan/statistics_plan.hpp"

using namespace fp8lab;
using namespace fp8lab::cuda;

namespace {

QuantSpec delayed() {
  QuantSpec spec = quantized(numerics::kE4M3, {0, 0});
  spec.scale_source = ScaleSource::delayed;
  return spec;
}

QuantSpec stochastic(QuantSpec spec) {
  spec.rounding = numerics::Rounding::stochastic;
  return spec;
}

QuantSpec transformed(QuantSpec spec, const char* name) {
  spec.transform = *transform_from_name(name);
  return spec;
}

std::string plan_of(const QuantSpec& spec, std::int64_t rows, std::int64_t cols,
                    bool transpose = false) {
  return describe(plan_quantize(spec, rows, cols, transpose));
}

TensorView view(DType type, std::int64_t rows, std::int64_t cols) {
  return TensorView::without_memory(type, rows, cols);
}

}  // namespace

TEST_CASE("the plan of a quantization follows its format, tile, scale and shape") {
  const QuantSpec tensor = quantized(numerics::kE4M3, {0, 0}),
                  row = quantized(numerics::kE4M3, {1, 0});
  CHECK(plan_of(tensor, 64, 64) ==
        "amax of the tensor, scale_kernel, block_kernel with the e4m3 instruction");
  CHECK(plan_of(quantized(numerics::kE4M3, {1, 128}), 64, 256) ==
        "block_kernel with the e4m3 instruction");
  CHECK(plan_of(quantized(numerics::kE4M3, {1, 96}), 64, 256) ==
        "amaxes of tiles, scale_kernel, encode_kernel with the e4m3 instruction");
  CHECK(plan_of(row, 64, kLongestRow) == "row_kernel with the e4m3 instruction");
  CHECK(plan_of(row, 64, kLongestRow + 8) ==
        "amaxes of rows, scale_kernel, block_kernel with the e4m3 instruction");
  CHECK(plan_of(row, 64, 256, true) ==
        "amaxes of columns, scale_kernel, block_kernel with the e4m3 instruction");
  CHECK(plan_of(quantized(numerics::kE2M1, {1, 16}, numerics::ScaleFormat::nv_two_level), 64, 64) ==
        "amax of the tensor, two_level_kernel, block_kernel with e2m1 by additions");
  CHECK(plan_of(quantized(numerics::kInt8, {1, 0}), 3, 5) == "row_kernel with int8 by an addition");
  CHECK(plan_of({}, 64, 64) == "cast_kernel");
}

TEST_CASE("a delayed amax is raised by the kernel that writes the codes, or by a pass of its own") {
  CHECK(
      plan_of(delayed(), 64, 64) ==
      "known_scale_kernel, block_kernel with the e4m3 instruction, which raises the delayed amax");
  const QuantizePlan plan = plan_quantize(stochastic(delayed()), 64, 64, false);
  CHECK(plan.codes == CodeKernel::element);
  CHECK(plan.amaxes == AmaxPasses{.tensor = true});
  CHECK_FALSE(plan.raises_amax);
}

TEST_CASE("random bits come from a block of words for four neighbours, or one by one") {
  const QuantSpec spec =
      stochastic(quantized(numerics::kE2M1, {1, 32}, numerics::ScaleFormat::e8m0));
  CHECK(plan_of(spec, 64, 64) == "block_kernel with StochasticCodec");
  CHECK(plan_of(spec, 64, 66) ==
        "amaxes of tiles, scale_kernel, encode_kernel with the general codec");
  QuantSpec few = spec;
  few.random_bits = 8;
  CHECK(plan_of(few, 64, 64) == "block_kernel with StochasticCodec");
}

TEST_CASE("casts through another format and factors of rows have scales in memory") {
  QuantSpec via = quantized(numerics::kE4M3, {1, 128});
  via.via = numerics::kFP16;
  CHECK(plan_of(via, 64, 256) ==
        "amaxes of tiles, scale_kernel, encode_kernel with the general codec");
  CHECK_FALSE(plan_quantize_both(via, via));
  CHECK_FALSE(plan_rows(via));
  QuantSpec rows = quantized(numerics::kE2M1, {1, 16}, numerics::ScaleFormat::nv_two_level);
  rows.scale.outer = numerics::OuterScale::row;
  CHECK(plan_of(rows, 64, 256) ==
        "amaxes of rows, amaxes of tiles, scale_kernel, encode_kernel with the general codec");
  CHECK(plan_quantize(rows, 64, 256, true).amaxes == AmaxPasses{.cols = true, .tiles = true});
  CHECK_FALSE(plan_quantize_both(rows, rows));
  CHECK_FALSE(plan_rows(rows));
}

TEST_CASE("transforms come first, and codebooks have a kernel of their own") {
  const QuantSpec tiles = quantized(numerics::kE4M3, {1, 128});
  CHECK(plan_of(transformed(tiles, "hadamard:16"), 64, 128) ==
        "Hadamard transform, block_kernel with the e4m3 instruction");
  CHECK(plan_of(transformed(tiles, "smooth:0.5"), 64, 128) ==
        "smoothing, block_kernel with the e4m3 instruction");
  CHECK(plan_of(transformed(tiles, "clamp:0.99"), 64, 128) ==
        "bounds of the clamp, clamp, block_kernel with the e4m3 instruction");
  CHECK(plan_of(transformed(tiles, "expand"), 64, 128) == "codebook_kernel");
}

TEST_CASE("both orientations share the passes, and one launch writes the codes") {
  const QuantSpec row = quantized(numerics::kE4M3, {1, 0}),
                  tensor = quantized(numerics::kE4M3, {0, 0});
  const auto plan = plan_quantize_both(row, row);
  REQUIRE(plan);
  CHECK(plan->amaxes() == AmaxPasses{.rows = true, .cols = true});
  CHECK(describe(*plan) ==
        "amaxes of rows and columns, scale_kernel, scale_kernel, block_kernel with the e4m3 "
        "instruction, both orientations");
  CHECK(plan_quantize_both(tensor, quantized(numerics::kE4M3, {128, 128})));
  CHECK_FALSE(plan_quantize_both(row, quantized(numerics::kE5M2, {1, 0})));
  CHECK_FALSE(plan_quantize_both(row, stochastic(row)));
  CHECK_FALSE(plan_quantize_both(row, transformed(row, "hadamard:16")));
  CHECK_FALSE(plan_quantize_both(row, quantized(numerics::kE4M3, {1, 96})));
}

TEST_CASE("a producer is fused by types, shapes and specs") {
  const QuantSpec tiles = quantized(numerics::kE4M3, {1, 128});
  const QuantSpec of_tensor = quantized(numerics::kE4M3, {0, 0});
  const auto operand = [](const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
    return QuantizedOperand::without_memory(spec, rows, k);
  };
  const auto kernel = [&](const ops::Producer& producer, const QuantSpec& first,
                          const QuantSpec* second, bool keeps) -> std::string {
    const TensorView& output = ops::output_of(producer);
    const QuantizedOperand a = operand(first, output.rows, output.cols);
    const QuantizedOperand b =
        operand(second == nullptr ? first : *second, output.cols, output.rows);
    const ops::ProduceQuantize op{.producer = producer,
                                  .first = a,
                                  .second = second == nullptr ? nullptr : &b,
                                  .keeps_output = keeps};
    const Fusion* const fusion = fusion_of(op);
    return fusion == nullptr ? "" : std::string(fusion->name());
  };
  const auto norm = [](DType type, std::int64_t cols) {
    return ops::RmsNormForward{.x = view(type, 64, cols),
                               .weight = view(type, 1, cols),
                               .y = view(type, 64, cols),
                               .rstd = view(DType::f32, 1, 64)};
  };
  const auto swiglu = [](DType type, std::int64_t cols) {
    return ops::GatedForward{Gate::silu, view(type, 64, 2 * cols), view(type, 64, cols)};
  };
  const auto gradient = [](std::int64_t cols) {
    return ops::GatedBackward{Gate::silu, view(DType::bf16, 64, 2 * cols),
                              view(DType::bf16, 64, cols), view(DType::bf16, 64, 2 * cols)};
  };
  const auto sum = [&](DType type) {
    return ops::AddRmsNormForward{view(type, 64, 256), view(type, 64, 256), norm(type, 256)};
  };
  const auto activation = [](DType type) {
    return ops::ActivationForward{Activation::relu2, view(type, 64, 256), view(type, 64, 256)};
  };
  const auto slope = [](DType type) {
    return ops::ActivationBackward{Activation::gelu_tanh, view(type, 64, 256), view(type, 64, 256),
                                   view(type, 64, 256)};
  };
  CHECK(kernel(norm(DType::bf16, 256), tiles, nullptr, true) == "rows in registers");
  CHECK(kernel(norm(DType::f32, 256), tiles, nullptr, true) == "rows in registers");
  CHECK(kernel(norm(DType::f32, 10248), tiles, nullptr, true).empty());  // of 40 992 bytes
  CHECK(kernel(norm(DType::bf16, 256), of_tensor, nullptr, true).empty());
  CHECK(kernel(norm(DType::bf16, 256), tiles, &tiles, false) ==
        "a pass for rstd, then blocks computed in registers");
  CHECK(kernel(norm(DType::bf16, 256), tiles, &tiles, true).empty());
  CHECK(kernel(norm(DType::f32, 256), tiles, &tiles, false).empty());
  CHECK(kernel(swiglu(DType::bf16, 256), tiles, &tiles, true) == "blocks computed in registers");
  CHECK(kernel(swiglu(DType::f32, 256), tiles, &tiles, true).empty());
  CHECK(kernel(gradient(256), tiles, &tiles, true) == "blocks computed in registers");
  CHECK(kernel(gradient(192), tiles, &tiles, true).empty());  // a tile reaches over the halves
  CHECK(kernel(gradient(256), tiles, nullptr, true).empty());
  CHECK(kernel(sum(DType::bf16), tiles, nullptr, true) == "rows in registers");
  CHECK(kernel(sum(DType::f32), tiles, nullptr, true).empty());
  CHECK(kernel(sum(DType::bf16), tiles, &tiles, false) ==
        "a pass for rstd, then blocks computed in registers");
  CHECK(kernel(sum(DType::bf16), tiles, &tiles, true).empty());
  CHECK(kernel(swiglu(DType::f32, 256), tiles, nullptr, true) == "rows in registers");
  CHECK(kernel(swiglu(DType::bf16, kLongestRow + 8), tiles, nullptr, true).empty());
  CHECK(kernel(activation(DType::bf16), tiles, &tiles, true) == "blocks computed in registers");
  CHECK(kernel(activation(DType::f32), tiles, &tiles, true).empty());
  CHECK(kernel(activation(DType::bf16), tiles, nullptr, true).empty());
  CHECK(kernel(slope(DType::bf16), tiles, &tiles, true) == "blocks computed in registers");
  CHECK(kernel(slope(DType::f32), tiles, &tiles, true).empty());
}

TEST_CASE("sums with norms, their gradients and pairs of operands are fused by types and shapes") {
  const auto norm = [](DType type, std::int64_t cols) {
    const TensorView rows = view(type, 64, cols);
    const ops::AddRmsNormForward op{
        rows,
        rows,
        {.x = rows, .weight = view(type, 1, cols), .y = rows, .rstd = view(DType::f32, 1, 64)}};
    const Fusion* const fusion = fusion_of(op);
    return fusion == nullptr ? "" : std::string(fusion->name());
  };
  CHECK(norm(DType::bf16, 20480) == "rows in registers");
  CHECK(norm(DType::bf16, 20488).empty());  // of 40 976 bytes
  CHECK(norm(DType::f32, 256).empty());
  const auto gradient = [](DType type, std::int64_t cols) {
    const TensorView rows = view(type, 64, cols);
    const ops::RmsNormBackwardAdd op{{.dy = rows,
                                      .x = rows,
                                      .weight = view(type, 1, cols),
                                      .rstd = view(DType::f32, 1, 64),
                                      .dx = rows,
                                      .dweight = view(DType::f32, 1, cols)},
                                     rows};
    const Fusion* const fusion = fusion_of(op);
    return fusion == nullptr ? "" : std::string(fusion->name());
  };
  CHECK(gradient(DType::bf16, 256) == "rows with sums of columns in registers");
  CHECK(gradient(DType::bf16, 252).empty());  // rows do not begin on 16 bytes
  CHECK(gradient(DType::bf16, 0).empty());
  CHECK(gradient(DType::f32, 256).empty());
  const QuantSpec row = quantized(numerics::kE4M3, {1, 0});
  const QuantizedOperand first = QuantizedOperand::without_memory(row, 64, 256);
  const QuantizedOperand second = QuantizedOperand::without_memory(row, 256, 64);
  const Fusion* const both = fusion_of(
      ops::QuantizeBoth{.source = view(DType::bf16, 64, 256), .first = first, .second = second});
  REQUIRE(both != nullptr);
  CHECK(both->name() == "one reading for both orientations");
}

TEST_CASE(
    "operands are measured together from a source in rows and in columns, if it has elements") {
  const QuantSpec tiles = quantized(numerics::kE4M3, {1, 128});
  const auto is_fused = [&](std::int64_t rows, std::int64_t cols, const QuantSpec& second) {
    const QuantizedOperand a = QuantizedOperand::without_memory(tiles, rows, cols);
    const QuantizedOperand b = QuantizedOperand::without_memory(second, cols, rows);
    const ops::MeasureBoth op{view(DType::bf16, rows, cols), a, b, {}, {}};
    return fusion_of(op) != nullptr;
  };
  CHECK(is_fused(128, 256, tiles));
  CHECK_FALSE(is_fused(128, 250, tiles));
  CHECK_FALSE(is_fused(0, 256, tiles));
  CHECK_FALSE(is_fused(128, 256, quantized(numerics::kE5M2, {1, 128})));
  CHECK_FALSE(is_fused(128, 256, transformed(tiles, "hadamard:16")));
}

TEST_CASE("each row of the table of fusions stands there once") {
  for (const Fusion& fusion : fusions()) {
    INFO(fusion.producer);
    int found = 0;
    for (const Fusion& other : fusions()) {
      found += other.producer == fusion.producer && other.work == fusion.work;
    }
    CHECK(found == 1);
  }
}
