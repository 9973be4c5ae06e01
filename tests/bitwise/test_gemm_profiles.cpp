// The fast GEMM of every emulated tensor core against the scalar reference.
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "emulation/api/tensor_core.hpp"
#include "emulation/cpu/gemm_operand.hpp"
#include "tests/bitwise/gemm_problem.hpp"

namespace {

using namespace fp8lab;        // NOLINT: the subject of every line below
using namespace fp8lab::test;  // NOLINT

}  // namespace

TEST_CASE("Every accumulator equals the reference, with every schedule and operand it takes") {
  CaseGenerator cases(17);
  const auto operand = [&](const TensorCoreProfile& profile, const BlockScale& scale, int i) {
    QuantSpec spec;
    spec.format = profile.operand;
    if (profile.takes_e5m2 && i % 3 == 1) spec.format = numerics::kE5M2;
    if (profile.takes_codes() && i % 5 == 2) spec.format = numerics::kE2M1;
    if (profile.operand == numerics::kE4M3 && i % 5 == 3) spec.format = numerics::kE3M2;
    if (profile.operand == numerics::kTF32 && i % 5 == 3) spec.format = numerics::kBF16;
    if (scale.width > 0) {
      spec.scale_source = ScaleSource::current;
      spec.scale.format = scale.format;
      spec.tile = {i % 4 == 0 ? 3 : 1, scale.width};
    } else if (spec.is_quantized()) {
      spec = quantized(spec.format, {i % 2, 0});
    }
    return spec;
  };
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    const auto& scales = profile.block_scales;
    for (int i = 0; i < 24; ++i) {
      GemmSpec spec;
      spec.accumulator = profile.accumulator;
      const int products = profile.products() == 1 ? 32 : profile.products();
      spec.schedule = i % 3 == 0 ? Schedule::promote : Schedule::fast;
      spec.promote_interval = products * (1 + i / 3 % 4);
      const BlockScale scale = scales[1].width > 0 && i % 2 == 1 ? scales[1] : scales[0];
      Problem p = random_problem(cases, spec, operand(profile, scale, i),
                                 operand(profile, scale, i + cases.bits() % 7), 200);
      if (i % 8 == 7) {
        p.k = draw(cases, 600, 1100);
        p.spec.split_k = spec.schedule == Schedule::fast ? 2 : 1;
      }
      check(cases, p);
    }
  }
}

TEST_CASE("Block scales that put every product below the floor of the common exponent") {
  CaseGenerator cases(24);
  for (const Accumulator accumulator : {Accumulator::sm100_mxf8f6f4, Accumulator::sm100_mxf4nvf4}) {
    const TensorCoreProfile& profile = profile_of(accumulator);
    GemmSpec spec;
    spec.accumulator = accumulator;
    QuantSpec operand = quantized(profile.operand, {1, 32});
    operand.scale.format = numerics::ScaleFormat::e8m0;
    for (const float scale : {0x1p-60f, 0x1p-64f, 0x1p-67f, 0x1p-70f, 0x1p-73f}) {
      Problem p = random_problem(cases, spec, operand, operand, 200);
      p.spec.output = DType::f32;
      p.accumulate = p.specials = false;
      p.bias = DType::u8;
      p.fixed_scale = scale;
      check(cases, p);
    }
  }
}

TEST_CASE("A subnormal FP16 accumulator counts at -14") {
  // Products of 2^-14 times 2^-14 and more lie below it, and those that are cut decide ties.
  CaseGenerator cases(25);
  const std::int64_t m = 20, n = 70, k = 200;
  for (const Accumulator accumulator :
       {Accumulator::sm90_wgmma_fp8_f16, Accumulator::sm89_mma_fp8_f16,
        Accumulator::sm90_mma_sync_fp8_f16, Accumulator::sm90_f16_f16acc}) {
    const bool wide = accumulator == Accumulator::sm90_f16_f16acc;
    std::vector<float> values_a, values_b;
    std::vector<std::uint8_t> codes_a, codes_b;
    const auto fill = [&](std::int64_t rows, std::vector<float>& values,
                          std::vector<std::uint8_t>& codes) {
      for (std::int64_t i = 0; i < rows * k; ++i) {
        const int exponent = wide && i % 2 == 0 ? -20 - static_cast<int>(cases.bits() % 2)
                                                : -11 - static_cast<int>(cases.bits() % 4);
        const float magnitude =
            numerics::bits_float(static_cast<std::uint32_t>(exponent + 127) << 23);
        values.push_back(cases.bits() % 2 == 0 ? magnitude : -magnitude);
        codes.push_back(numerics::to_e5m2(values.back()));
      }
      return wide ? unscaled(numerics::kFP16, values.data(), rows, k)
                  : unscaled(numerics::kE5M2, codes.data(), rows, k);
    };
    GemmSpec spec;
    spec.accumulator = accumulator;
    const QuantizedOperand a = fill(m, values_a, codes_a), b = fill(n, values_b, codes_b);
    check_operands(spec, a, b);
  }
}

TEST_CASE("What FP32 cannot hold still decides ties of an FP16 accumulator") {
  // Sums of 1, 2^-11 and 2^-24: ties of FP16 but for the last, which is below FP32's unit.
  CaseGenerator cases(26);
  const std::int64_t m = 8, n = 70, k = 64;
  std::vector<float> a, b;
  for (std::int64_t i = 0; i < m * k; ++i) a.push_back(cases.bits() % 4 == 0 ? -1.0f : 1.0f);
  for (std::int64_t i = 0; i < n * k; ++i) {
    const float values[] = {0.0f, i % 16 == 0 ? 1.0f : 0.0f, 0x1p-11f, 0x1p-24f};
    b.push_back(values[cases.bits() % 4]);
  }
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_f16_f16acc;
  check_operands(spec, unscaled(numerics::kFP16, a.data(), m, k),
                 unscaled(numerics::kFP16, b.data(), n, k));
}

TEST_CASE("One accumulator alone has no fast path") {
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    INFO(profile.name);
    const bool fast = profile.accumulator != Accumulator::ideal_exact;
    CHECK(cpu::fast_method(profile.accumulator).has_value() == fast);
  }
}
