// The CUDA quantizers give the codes, scales and amaxes of the CPU quantizer, gaps between rows
// included: those that read the source once, and the general ones.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "emulation/spec/current_scaling.hpp"
#include "kernels/plan/quantize_plan.hpp"
#include "tests/kernels/device_test.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

/// Whole blocks of 128 x 128; tails of every kind; rows longer than one pass of a block.
constexpr MatrixShape kSourceShapes[] = {{1, 1},      {3, 7},     {128, 128},
                                         {256, 384},  {129, 127}, {130, 257},
                                         {512, 1000}, {37, 4104}, {300, 72}};
/// Of source and codes: without gaps; wide rows with gaps; odd row starts; unaligned rows.
constexpr RowLayout kSourceLayouts[] = {{0, 0}, {32, 16}, {3, 0}, {16, 1}};

QuantSpec spec_of(const numerics::FormatSpec& format, TileShape tile, ScaleSource source,
                  numerics::ScaleFormat scale = numerics::ScaleFormat::fp32) {
  QuantSpec spec = quantized(format, tile, scale);
  spec.scale_source = source;
  spec.scale.rounding = numerics::ScaleRounding::rceil;
  spec.history_length = 4;
  return spec;
}

std::vector<QuantSpec> specs() {
  using numerics::ScaleFormat;
  std::vector<QuantSpec> all;
  for (const std::int64_t g : {16, 32, 64, 128}) {
    all.push_back(spec_of(numerics::kE4M3, {1, g}, ScaleSource::current, ScaleFormat::e8m0));
    all.push_back(spec_of(numerics::kE5M2, {1, g}, ScaleSource::current));
    all.push_back(spec_of(numerics::kE4M3, {g, g}, ScaleSource::current, ScaleFormat::pow2));
  }
  for (const TileShape tile : {TileShape{0, 0}, TileShape{1, 0}, TileShape{3, 20}}) {
    all.push_back(spec_of(numerics::kE4M3, tile, ScaleSource::current));
    all.push_back(spec_of(numerics::kE2M1, tile, ScaleSource::current, ScaleFormat::pow2));
  }
  all.push_back(spec_of(numerics::kE5M2, {}, ScaleSource::delayed));
  all.push_back(spec_of(numerics::kE4M3, {}, ScaleSource::static_scale));
  all.back().static_scale = 0.37f;
  all.push_back(spec_of(numerics::kE5M2, {}, ScaleSource::none));
  for (const TileShape tile : {TileShape{0, 0}, TileShape{1, 32}, TileShape{1, 0}}) {
    all.push_back(spec_of(numerics::kE4M3, tile, ScaleSource::current));
    all.back().scale.arithmetic = numerics::ScaleArithmetic::dec_div;
  }
  for (const auto choice : {numerics::FourOverSix::none, numerics::FourOverSix::mse}) {
    all.push_back(
        spec_of(numerics::kE2M1, {1, 16}, ScaleSource::current, ScaleFormat::nv_two_level));
    all.back().scale.outer = numerics::OuterScale::row;
    all.back().scale.four_over_six = choice;
  }
  for (const TileShape tile : {TileShape{1, 32}, TileShape{3, 20}, TileShape{0, 0}}) {
    all.push_back(spec_of(numerics::kE2M1, tile, ScaleSource::current));
    all.back().rounding = numerics::Rounding::stochastic;
    all.back().random_bits = 8;
    all.push_back(spec_of(numerics::kE4M3, tile, ScaleSource::current));
    all.back().via = tile.is_tensor() ? numerics::kBF16 : numerics::kFP16;
  }
  return all;
}

QuantizedOperand shaped(const QuantSpec& spec, const MatrixShape& source, bool transpose) {
  const MatrixShape shape = source.transposed_if(transpose);
  return QuantizedOperand::without_memory(spec, shape.rows, shape.cols);
}

HostTensor codes_of(const QuantizedOperand& form, std::uint32_t seed, RowLayout layout) {
  return filled(DType::u8, form.rows, form.k, Fill::any_bits, seed, layout);
}

HostTensor scales_of(const QuantizedOperand& form, std::uint32_t seed, RowLayout layout) {
  return filled(DType::f32, form.spec.tile_rows(form.rows), form.spec.tile_cols(form.k),
                Fill::any_bits, seed, {layout.gap, 0});
}

/// The operand of this form with codes and scales in these tensors.
QuantizedOperand in_memory(QuantizedOperand form, const TensorView& codes,
                           const TensorView& scales) {
  form.codes = codes;
  form.scales = form.spec.has_scale() ? scales : TensorView{};
  return form;
}

HostTensor delayed_state(std::uint32_t seed) {
  HostTensor state = filled(DType::f32, 1, DelayedState::kHistory + 4, Fill::ordinary, seed);
  put(state, 0, DelayedState::kScale, 0.3);
  put(state, 0, DelayedState::kMultiplier, 3.3);
  put(state, 0, DelayedState::kAmax, 0.01);
  return state;
}

/// A source with special values in some tiles, and with large stretches of zeros.
HostTensor make_source(DType type, const MatrixShape& shape, Fill fill, std::uint32_t seed,
                       RowLayout layout) {
  HostTensor source = filled(type, shape.rows, shape.cols, fill, seed, layout);
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t c = 0; c < shape.cols; ++c) {
      if ((r / 32 + c / 32) % 3 == 1) put(source, r, c, c % 2 == 0 ? 0.0 : -0.0);
    }
  }
  return source;
}

template <class Run>
void for_all_sources(const Run& run) {
  std::uint32_t seed = 1;
  for (const DType type : {DType::bf16, DType::f32}) {
    for (const MatrixShape& shape : kSourceShapes) {
      for (const RowLayout& layout : kSourceLayouts) {
        const Fill fill = seed % 3 == 0   ? Fill::ordinary
                          : seed % 3 == 1 ? Fill::difficult
                                          : Fill::any_bits;
        const HostTensor source = make_source(type, shape, fill, seed, layout);
        run(source, shape, layout, seed += 7);
      }
    }
  }
}

}  // namespace

TEST_CASE("cuda quantize") {
  if (device_backend() == nullptr) return;
  for_all_sources([&](const HostTensor& source, const MatrixShape& shape, RowLayout layout,
                      std::uint32_t seed) {
    for (const QuantSpec& spec : specs()) {
      for (const bool transpose : {false, true}) {
        const QuantizedOperand form = shaped(spec, shape, transpose);
        check_same(
            label(spec) + (transpose ? " transposed" : ""),
            {source, codes_of(form, seed, layout), scales_of(form, seed + 1, layout),
             delayed_state(seed)},
            [&](Backend& b, const Views& t) {
              const QuantizedOperand operand = in_memory(form, t[1], t[2]);
              b.run(ops::Quantize{
                  .source = t[0], .transpose = transpose, .state = t[3], .operand = operand});
            });
      }
    }
  });
}

TEST_CASE("cuda never leaves a transform out, nor does without what it needs") {
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.scale_source = ScaleSource::current;
  CHECK(cuda::plan_quantize_both(spec, spec));
  DeviceBackend* const device = device_backend();
  for (const char* name :
       {"hadamard:16", "hadamard:full", "smooth:0.5", "clamp:0.99", "clamp:0.99:compensated"}) {
    spec.transform = *transform_from_name(name);
    CHECK_FALSE(cuda::plan_quantize_both(spec, spec));
    if (device == nullptr) continue;
    // K = 3 has no Hadamard matrix; no factors, no memory for bounds.
    float values[3] = {1.0f, 2.0f, 3.0f}, scale = 0.0f;
    std::uint8_t codes[3] = {};
    QuantizedOperand operand;
    operand.spec = spec;
    operand.rows = 1;
    operand.k = 3;
    operand.codes = {codes, DType::u8, 1, 3, 3};
    operand.scales = {&scale, DType::f32, 1, 1, 1};
    const TensorView source{values, DType::f32, 1, 3, 3};
    CHECK_THROWS_AS(device->run(ops::Quantize{.source = source, .operand = operand}), Error);
  }
}

TEST_CASE("cuda quantize both orientations") {
  DeviceBackend* const device = device_backend();
  if (device == nullptr) return;
  int fused = 0;
  for_all_sources([&](const HostTensor& source, const MatrixShape& shape, RowLayout layout,
                      std::uint32_t seed) {
    const std::vector<QuantSpec> all = specs();
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const std::size_t j : {i, (i + 3) % all.size(), (i + 2 + seed) % all.size()}) {
        const QuantizedOperand first = shaped(all[i], shape, false);
        const QuantizedOperand second = shaped(all[j], shape, true);
        if (!cuda::plan_quantize_both(all[i], all[j])) continue;
        ++fused;
        check_same(label(all[i]) + " and " + label(all[j]),
                   {source, codes_of(first, seed, layout), scales_of(first, seed + 1, layout),
                    codes_of(second, seed + 2, layout), scales_of(second, seed + 3, layout),
                    delayed_state(seed)},
                   [&](Backend& b, const Views& t) {
                     const QuantizedOperand a = in_memory(first, t[1], t[2]);
                     const QuantizedOperand transposed = in_memory(second, t[3], t[4]);
                     const ops::QuantizeBoth op{
                         .source = t[0], .state = t[5], .first = a, .second = transposed};
                     if (&b == device) REQUIRE(!b.supports(op).fused_by.empty());
                     b.run(op);
                   });
      }
    }
  });
  CHECK(fused > 1000);
}

TEST_CASE("the backend says which kernel fuses a composite, and which runs in parts") {
  if (device_backend() == nullptr) return;
  const cuda::CudaBackend& backend = *device_backend();
  const auto view = [](DType type, std::int64_t rows, std::int64_t cols) {
    return TensorView::without_memory(type, rows, cols);
  };
  const auto fused_by = [&](DType type) {
    const TensorView rows = view(type, 64, 256);
    return backend
        .supports(ops::AddRmsNormForward{
            rows,
            rows,
            {.x = rows, .weight = view(type, 1, 256), .y = rows, .rstd = view(DType::f32, 1, 64)}})
        .fused_by;
  };
  CHECK(fused_by(DType::bf16) == "rows in registers");
  CHECK(fused_by(DType::f32).empty());
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.scale_source = ScaleSource::current;
  const auto both = [&] {
    const QuantizedOperand first = QuantizedOperand::without_memory(spec, 64, 256);
    const QuantizedOperand second = QuantizedOperand::without_memory(spec, 256, 64);
    return backend.supports(
        ops::QuantizeBoth{.source = view(DType::bf16, 64, 256), .first = first, .second = second});
  };
  CHECK(both().fused_by == "one reading for both orientations");
  spec.rounding = numerics::Rounding::stochastic;
  CHECK(both());
  CHECK(both().fused_by.empty());
}
