// The fast GEMM on every SIMD target against the reference: any codes, spec and shape.
#include <vector>

#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "tests/fuzz/fuzz_target.hpp"

using namespace fp8lab;  // NOLINT: the subject of every line below

namespace {

struct Operand {
  std::vector<std::uint16_t> codes;  ///< bytes for narrow formats
  std::vector<float> scales;
  QuantizedOperand view;

  Operand(const QuantSpec& spec, std::int64_t rows, std::int64_t k, fuzz::Choices& choices) {
    codes.resize(static_cast<std::size_t>(rows * k));
    auto* bytes = reinterpret_cast<std::uint8_t*>(codes.data());
    const bool narrow = spec.is_quantized();
    const auto mask =
        static_cast<std::uint16_t>(spec.format.sign_mask() | spec.format.magnitude_mask());
    std::uint32_t state = choices.value<std::uint32_t>() | 1u;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      // First what the input says, then a linear congruence from it.
      state = state * 1664525u + 1013904223u;
      const std::uint16_t any = choices.empty() ? static_cast<std::uint16_t>(state >> 16)
                                                : choices.value<std::uint16_t>();
      const auto code = static_cast<std::uint16_t>(any & mask);
      if (narrow) {
        bytes[i] = static_cast<std::uint8_t>(code);
      } else {
        codes[i] = code;
      }
    }
    view.spec = spec;
    view.rows = rows;
    view.k = k;
    view.codes = {codes.data(), narrow ? DType::u8 : DType::bf16, rows, k, k};
    if (!spec.has_scale()) return;
    const std::int64_t high = spec.tile_rows(rows), wide = spec.tile_cols(k);
    for (std::int64_t i = 0; i < high * wide; ++i) {
      state = state * 1664525u + 1013904223u;
      scales.push_back(
          numerics::bits_float(state >> 30 == 0 ? state << 2 >> 1 : 0x3E000000u + (state >> 7)));
    }
    view.scales = {scales.data(), DType::f32, high, wide, wide};
  }
};

QuantSpec choose_operand(fuzz::Choices& choices) {
  constexpr numerics::FormatSpec kFormats[] = {numerics::kE4M3, numerics::kE5M2, numerics::kE2M1,
                                               numerics::kE3M2, numerics::kBF16};
  constexpr TileShape kTiles[] = {{0, 0}, {1, 0}, {1, 128}, {128, 128}, {1, 32}, {1, 16}};
  QuantSpec spec;
  spec.format = kFormats[choices.below(std::size(kFormats))];
  if (spec.is_quantized() && choices.below(4) != 0) {
    spec.scale_source = ScaleSource::current;
    spec.tile = kTiles[choices.below(std::size(kTiles))];
  }
  return spec;
}

GemmSpec choose_gemm(fuzz::Choices& choices) {
  constexpr Accumulator kVectorised[] = {Accumulator::sm90_wgmma_fp8, Accumulator::sm90_bf16,
                                         Accumulator::ideal_fp32};
  GemmSpec spec;
  spec.accumulator = kVectorised[choices.below(3)];
  spec.schedule = static_cast<Schedule>(choices.below(2));
  spec.promote_interval = static_cast<int>(1 + choices.below(160));
  spec.scale_order = static_cast<ScaleOrder>(choices.below(5));
  spec.split_k = static_cast<int>(1 + choices.below(3));
  spec.output = choices.below(2) == 0 ? DType::bf16 : DType::f32;
  return spec;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Choices choices(data, size);
  const GemmSpec spec = choose_gemm(choices);
  const QuantSpec spec_a = choose_operand(choices), spec_b = choose_operand(choices);
  const std::int64_t m = 1 + choices.below(6), n = 1 + choices.below(40),
                     k = 1 + choices.below(300);
  const bool accumulate = choices.below(2) == 1 && spec.output == DType::f32;
  const bool with_bias = choices.below(2) == 1;
  const Operand a(spec_a, m, k, choices), b(spec_b, n, k, choices);
  std::vector<float> bias_values(static_cast<std::size_t>(n), 0.3f);
  TensorView bias;
  if (with_bias) bias = {bias_values.data(), DType::f32, 1, n, n};
  std::vector<float> want(static_cast<std::size_t>(m * n), 1.75f);
  const std::vector<float> start = want;
  fuzz::accept_error([&] {
    reference::gemm(
        ops::Gemm{spec, a.view, b.view, bias, accumulate, {want.data(), spec.output, m, n, n}});
    for (const cpu::SimdTarget target : cpu::available_targets()) {
      cpu::set_active_target(target);
      std::vector<float> got = start;
      cpu::run(
          ops::Gemm{spec, a.view, b.view, bias, accumulate, {got.data(), spec.output, m, n, n}});
      fuzz::require(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0,
                    label(spec) + " of " + label(spec_a) + " by " + label(spec_b) + " on " +
                        std::string(cpu::name_of(target)));
    }
  });
  return 0;
}
