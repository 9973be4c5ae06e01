// The library's GEMM, our kernels and the CPU emulator on the same operands: the same bytes.
#include <catch2/catch.hpp>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/operations.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/library/gemm_cublaslt.hpp"
#include "kernels/runtime/operations.hpp"
#include "tests/kernels/operand_twin.hpp"

namespace fp8lab::test {
namespace {

using cuda::GemmCall;
using numerics::kE4M3;
using numerics::kE5M2;

struct Shape {
  std::int64_t m, n, k;
};

std::string name_of_case(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                         const Shape& shape) {
  return label(spec) + " " + label(a) + " x " + label(b) + " " + std::to_string(shape.m) + "x" +
         std::to_string(shape.n) + "x" + std::to_string(shape.k);
}

/// Runs the library with its first algorithm, then the emulator and our kernel with its split.
/// Returns the split.
int compare_all(GemmSpec spec, const QuantSpec& qa, const QuantSpec& qb, const Shape& shape,
                bool with_bias = false, bool accumulate = false) {
  cuda::Context& context = *device_context();
  static const cuda::CublasLt library;
  const OperandTwin a(qa, shape.m, shape.k, 11), b(qb, shape.n, shape.k, 12);
  Twin bias(DType::bf16, 1, shape.n, Fill::ordinary, 13);
  Twin by_library(spec.output, shape.m, shape.n, Fill::ordinary, 14, Layout{16, 16});
  Twin by_kernel(spec.output, shape.m, shape.n, Fill::ordinary, 14, Layout{16, 16});
  for (Twin* twin : {&bias, &by_library, &by_kernel}) twin->upload();
  const TensorView device_bias = with_bias ? bias.device() : TensorView{};
  const TensorView host_bias = with_bias ? bias.host() : TensorView{};

  const auto choice = cuda::library_a(plan_gemm(spec, qa, qb, shape.k));
  cuda::CublasLtGemm gemm(
      library, GemmCall{spec, a.device(), b.device(), device_bias, accumulate, by_library.device()},
      choice);
  const cuda::DeviceArray<std::byte> scratch(gemm.scratch_bytes());
  gemm.prepare(context, scratch.data(), std::nullopt);
  gemm.run(context);
  context.synchronize();

  spec.split_k = gemm.split_k();
  const std::string name = name_of_case(spec, qa, qb, shape) + ", " + gemm.algorithm();
  cpu::run(ops::Gemm{spec, a.host(), b.host(), host_bias, accumulate, by_library.host()});
  by_library.check_equal("cuBLASLt, " + name);
  cuda::run(context,
            ops::Gemm{spec, a.device(), b.device(), device_bias, accumulate, by_kernel.device()});
  context.synchronize();
  cpu::run(ops::Gemm{spec, a.host(), b.host(), host_bias, accumulate, by_kernel.host()});
  by_kernel.check_equal("own kernel, " + name);
  return gemm.split_k();
}

const Shape kShapes[] = {{16, 16, 16},     {128, 128, 128}, {256, 384, 512},  {208, 144, 400},
                         {1024, 144, 336}, {48, 2064, 896}, {512, 1024, 1536}};
/// Few tiles and a long K, where the library's heuristic splits.
const Shape kSplitShape = {128, 128, 16384};

struct Mode {
  TileShape a, b;
  ScaleOrder order = ScaleOrder::automatic;
};
const Mode kScaledAlongK[] = {{{1, 128}, {1, 128}, ScaleOrder::automatic},
                              {{1, 128}, {1, 128}, ScaleOrder::a_then_b},
                              {{1, 128}, {128, 128}, ScaleOrder::automatic},
                              {{128, 128}, {1, 128}, ScaleOrder::automatic}};

}  // namespace

TEST_CASE("scales per tensor and per row") {
  if (device_context() == nullptr) return;
  for (const TileShape tile : {TileShape{0, 0}, TileShape{1, 0}}) {
    for (const Schedule schedule : {Schedule::fast, Schedule::promote}) {
      for (const Shape& shape : kShapes) {
        const QuantSpec e4m3 = quantized(kE4M3, tile), e5m2 = quantized(kE5M2, tile);
        compare_all(fp8_gemm(schedule, DType::bf16), e4m3, e4m3, shape);
        compare_all(fp8_gemm(schedule, DType::f32), e5m2, e4m3, shape, false, true);
        compare_all(fp8_gemm(schedule, DType::f32), e4m3, e5m2, shape);
      }
    }
  }
}

TEST_CASE("scales that change along K") {
  if (device_context() == nullptr) return;
  for (const Mode& mode : kScaledAlongK) {
    for (const Shape& shape : kShapes) {
      const QuantSpec a = quantized(kE4M3, mode.a), b = quantized(kE4M3, mode.b);
      compare_all(fp8_gemm(Schedule::promote, DType::bf16, mode.order), a, b, shape);
      compare_all(fp8_gemm(Schedule::promote, DType::f32, mode.order), quantized(kE5M2, mode.a), b,
                  shape, false, true);
    }
  }
}

TEST_CASE("bf16 operands") {
  if (device_context() == nullptr) return;
  for (const DType output : {DType::bf16, DType::f32}) {
    GemmSpec spec;
    spec.output = output;
    for (const Shape& shape : kShapes) {
      compare_all(spec, {}, {}, shape, output == DType::bf16, output == DType::f32);
    }
  }
}

TEST_CASE("a bias where the library adds one along our columns") {
  if (device_context() == nullptr) return;
  const QuantSpec tensor = quantized(kE4M3, {0, 0});
  const QuantSpec vectors = quantized(kE4M3, {1, 128}), blocks = quantized(kE4M3, {128, 128});
  for (const Shape& shape : kShapes) {
    compare_all(fp8_gemm(Schedule::fast, DType::bf16), tensor, tensor, shape, true);
    compare_all(fp8_gemm(Schedule::promote, DType::bf16), vectors, blocks, shape, true);
  }
}

TEST_CASE("the emulator follows the library's split of K") {
  if (device_context() == nullptr) return;
  int splits = 0;
  for (const bool accumulate : {false, true}) {
    const DType output = accumulate ? DType::f32 : DType::bf16;
    const QuantSpec tensor = quantized(kE4M3, {0, 0});
    for (const Schedule schedule : {Schedule::fast, Schedule::promote}) {
      splits += compare_all(fp8_gemm(schedule, output), tensor, tensor, kSplitShape, false,
                            accumulate) > 1;
    }
    for (const Mode& mode : kScaledAlongK) {
      splits +=
          compare_all(fp8_gemm(Schedule::promote, output, mode.order), quantized(kE4M3, mode.a),
                      quantized(kE4M3, mode.b), kSplitShape, false, accumulate) > 1;
    }
    GemmSpec bf16;
    bf16.output = output;
    splits += compare_all(bf16, {}, {}, kSplitShape, false, accumulate) > 1;
  }
  INFO("cases in which the library split K; none would leave the split untested");
  CHECK(splits > 0);
}

TEST_CASE("a split that the library does not offer is refused") {
  if (device_context() == nullptr) return;
  const QuantSpec tensor = quantized(kE4M3, {0, 0});
  const OperandTwin a(tensor, 128, 8192, 1), b(tensor, 128, 8192, 2);
  Twin d(DType::bf16, 128, 128, Fill::ordinary, 3);
  const GemmSpec spec = fp8_gemm(Schedule::fast, DType::bf16);
  const cuda::CublasLt library;
  const GemmCall call{spec, a.device(), b.device(), {}, false, d.device()};
  cuda::CublasLtGemm gemm(library, call, cuda::LibraryA::ours_b);
  const cuda::DeviceArray<std::byte> scratch(gemm.scratch_bytes());
  gemm.prepare(*device_context(), scratch.data(), 1);
  CHECK(gemm.split_k() == 1);
  CHECK_THROWS_WITH(gemm.prepare(*device_context(), scratch.data(), 63),
                    Catch::Contains("accepted here: split_k:"));
}

TEST_CASE("shapes, rows and biases that the library does not take are refused") {
  if (device_context() == nullptr) return;
  const QuantSpec row = quantized(kE4M3, {1, 0});
  const OperandTwin a(row, 64, 64, 1), b(row, 32, 64, 2), odd(row, 40, 64, 3),
      short_k(row, 64, 40, 4);
  const OperandTwin short_b(row, 32, 40, 5);
  Twin d(DType::bf16, 64, 32, Fill::ordinary, 6),
      shifted(DType::bf16, 64, 32, Fill::ordinary, 6, {0, 1});
  Twin odd_d(DType::bf16, 40, 32, Fill::ordinary, 6), bias(DType::bf16, 1, 32, Fill::ordinary, 7);
  const cuda::CublasLt library;
  const GemmSpec spec = fp8_gemm(Schedule::fast, DType::bf16);
  const auto refused = [&](const GemmCall& call, const char* words) {
    CHECK_THROWS_WITH(cuda::CublasLtGemm(library, call, cuda::LibraryA::ours_a),
                      Catch::Contains(words));
  };
  refused({spec, odd.device(), b.device(), {}, false, odd_d.device()}, "multiples of 16");
  refused({spec, short_k.device(), short_b.device(), {}, false, d.device()}, "multiples of 16");
  refused({spec, a.device(), b.device(), {}, false, shifted.device()}, "those of D are not");
  refused({spec, a.device(), b.device(), bias.device(), false, d.device()}, "adds a bias along");
}

TEST_CASE("what the library computes in no shape is refused, no device needed") {
  const auto reason = [](const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
    return cuda::cublaslt_refusal(spec, a, b);
  };
  using Catch::Contains;
  const TileShape tensor{0, 0}, row{1, 0}, vector{1, 128}, block{128, 128};
  const GemmSpec fast = fp8_gemm(Schedule::fast, DType::bf16);
  const GemmSpec promoted = fp8_gemm(Schedule::promote, DType::bf16);
  const auto e4m3 = [](TileShape tile) { return quantized(kE4M3, tile); };

  CHECK(reason(fast, e4m3(tensor), e4m3(tensor)).empty());
  CHECK(reason(fast, e4m3(row), quantized(kE5M2, row)).empty());
  CHECK(reason(promoted, e4m3(vector), e4m3(block)).empty());
  CHECK(reason({}, {}, {}).empty());
  CHECK_THAT(reason(fast, quantized(kE5M2, tensor), quantized(kE5M2, tensor)),
             Contains("does not multiply e5m2 by e5m2"));
  CHECK_THAT(reason(fast, e4m3(tensor), e4m3(row)), Contains("does not combine"));
  CHECK_THAT(reason(promoted, e4m3(block), e4m3(block)), Contains("does not combine"));
  CHECK_THAT(reason(promoted, e4m3(vector), e4m3(tensor)), Contains("does not combine"));
  CHECK_THAT(reason(fast, quantized(numerics::kE2M1, tensor), e4m3(tensor)),
             Contains("other formats are refused"));
  CHECK_THAT(reason({}, e4m3(tensor), {}), Contains("quantized operands are refused"));
  GemmSpec spec = promoted;
  spec.promote_interval = 64;
  CHECK_THAT(reason(spec, e4m3(row), e4m3(row)), Contains("promotes every 128 of K, not 64"));
  spec = promoted;
  spec.scale_order = ScaleOrder::product_first;
  CHECK_THAT(reason(spec, e4m3(vector), e4m3(vector)), Contains("one after the other"));
  CHECK_THAT(reason(spec, e4m3(tensor), e4m3(tensor)), Contains("constant along K"));
  spec.scale_order = ScaleOrder::b_then_a;
  CHECK_THAT(reason(spec, e4m3(vector), e4m3(block)), Contains("scales first"));
  spec = {};
  spec.schedule = Schedule::promote;
  CHECK_THAT(reason(spec, {}, {}), Contains("accepted: fast"));
  spec = {};
  spec.accumulator = Accumulator::ideal_fp32;
  CHECK_THAT(reason(spec, {}, {}), Contains("has no accumulator ideal_fp32"));
}

}  // namespace fp8lab::test
