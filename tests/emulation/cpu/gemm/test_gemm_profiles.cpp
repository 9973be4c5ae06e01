// The fast GEMM of every emulated tensor core against the scalar reference.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "emulation/cpu/gemm/exact_chain.hpp"
#include "emulation/cpu/gemm/f64_product.hpp"
#include "emulation/numerics/exact_sum.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/spec/tensor_core.hpp"
#include "tests/emulation/cpu/gemm/gemm_problem.hpp"

namespace {

using namespace fp8lab;        // NOLINT: the subject of every line below
using namespace fp8lab::test;  // NOLINT

}  // namespace

TEST_CASE("Every accumulator equals the reference, with every schedule and operand it takes") {
  CaseGenerator cases(17);
  const auto operand = [&](const TensorCoreProfile& profile, const BlockScale& scale, int i) {
    QuantSpec spec;
    const Accumulator& unit = profile.accumulator;
    spec.format = unit.operand;
    if (unit.takes_e5m2 && i % 3 == 1) spec.format = *unit.second_operand();
    const bool carries = unit.takes_codes() && unit.carrier(numerics::kE2M1);
    if (carries && i % 5 == 2) spec.format = numerics::kE2M1;
    if (profile.accumulator.operand == numerics::kE4M3 && i % 5 == 3) spec.format = numerics::kE3M2;
    if (profile.accumulator.operand == numerics::kTF32 && i % 5 == 3) spec.format = numerics::kBF16;
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
    if (profile_of(profile.accumulator) != &profile) continue;  // the same record again
    const auto& scales = profile.accumulator.block_scales;
    for (int i = 0; i < 24; ++i) {
      GemmSpec spec;
      spec.accumulator = profile.accumulator;
      const int products =
          profile.accumulator.products() == 1 ? 32 : profile.accumulator.products();
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

TEST_CASE("Every record of parameters runs, with or without a vectorised chain") {
  CaseGenerator cases(31);
  for (int i = 0; i < 60; ++i) {
    GemmSpec spec;
    numerics::GroupModel& group = spec.accumulator.group;
    spec.accumulator = Accumulator::sm90_wgmma_fp8;
    group.products = static_cast<int>(draw(cases, 1, 32));
    group.fraction_bits = static_cast<int>(draw(cases, 0, 48));
    group.output_mantissa_bits = static_cast<int>(draw(cases, 1, 23));
    if (i % 4 == 1) {
      group.output = numerics::OutputKind::f16_nearest;
      group.output_mantissa_bits = 10;
    }
    if (i % 4 == 2) group.min_exponent = -static_cast<int>(draw(cases, 0, 300));
    if (i % 5 == 2) group.alignment = numerics::Alignment::nearest_even;
    if (i % 4 == 3) {
      group.late_fraction_bits = std::max(1, group.fraction_bits);
      group.partial_sums = 1 + i % 3;
    }
    const numerics::FormatSpec formats[] = {numerics::kE4M3, numerics::kBF16, numerics::kFP16,
                                            numerics::kE5M2};
    spec.accumulator.operand = formats[i % 4];
    spec.accumulator.takes_e5m2 = spec.accumulator.operand == numerics::kE4M3;
    REQUIRE(accumulator_refusal(spec.accumulator) == "");
    spec.schedule = i % 3 == 0 ? Schedule::promote : Schedule::fast;
    spec.promote_interval = group.products * static_cast<int>(draw(cases, 1, 4));
    QuantSpec operand;
    operand.format = spec.accumulator.operand;
    if (operand.is_quantized()) operand = quantized(operand.format, {i % 2, 0});
    check(cases, random_problem(cases, spec, operand, operand, 100));
  }
  // Parameters of a chain with an operand of another kind must not take that chain.
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.accumulator.operand = numerics::kBF16;
  spec.accumulator.takes_e5m2 = false;
  QuantSpec values;
  check(cases, random_problem(cases, spec, values, values, 100));
}

TEST_CASE("Block scales that put every product below the floor of the common exponent") {
  CaseGenerator cases(24);
  for (const Accumulator& accumulator :
       {Accumulator::sm100_mxf8f6f4, Accumulator::sm100_mxf4nvf4}) {
    const TensorCoreProfile& profile = *profile_of(accumulator);
    GemmSpec spec;
    spec.accumulator = accumulator;
    QuantSpec operand = quantized(profile.accumulator.operand, {1, 32});
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
  for (const Accumulator& accumulator :
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

namespace {

/// FP32 values +- s 2^e with significands s of `bits` bits and e in [low, high].
std::vector<float> spread(CaseGenerator& cases, std::int64_t count, int bits, int low, int high) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto significand = static_cast<float>(1 + cases.bits() % ((1u << bits) - 1u));
    const int exponent =
        low + static_cast<int>(cases.bits() % static_cast<unsigned>(high - low + 1));
    const float value = std::ldexp(significand, exponent);
    values.push_back(cases.bits() % 2 == 0 ? value : -value);
  }
  return values;
}

void check_exact(std::vector<float>& a, std::vector<float>& b, std::int64_t k, Schedule schedule) {
  GemmSpec spec;
  spec.accumulator = Accumulator::ideal_exact;
  spec.output = DType::f32;
  spec.schedule = schedule;
  spec.promote_interval = 32;
  check_operands(spec,
                 unscaled(numerics::kFP32, a.data(), static_cast<std::int64_t>(a.size()) / k, k),
                 unscaled(numerics::kFP32, b.data(), static_cast<std::int64_t>(b.size()) / k, k));
}

}  // namespace

TEST_CASE("Exact sums of any range: FP64 alone, its proof, and where that fails") {
  CaseGenerator cases(27);
  const std::int64_t m = 9, n = 70;
  struct Range {
    int bits, low, high;
  };
  // 53 bits with K = 128 are 46 of the operands: 23 each. Just within, just beyond, and far.
  for (const Range range :
       {Range{3, -10, 10}, Range{3, -10, 11}, Range{24, -4, 4}, Range{8, -20, 20},
        Range{24, -149, -100}, Range{24, -80, -60}, Range{1, -149, 126}}) {
    for (const std::int64_t k : {1, 2, 31, 128, 129, 400}) {
      std::vector<float> a = spread(cases, m * k, range.bits, range.low, range.high);
      std::vector<float> b = spread(cases, n * k, range.bits, range.low, range.high);
      INFO(range.bits << " " << range.low << " " << range.high << " " << k);
      check_exact(a, b, k, k % 2 == 0 ? Schedule::promote : Schedule::fast);
    }
  }
}

TEST_CASE("Exact sums at ties and after cancellation") {
  // A row of terms that cancel but for what FP64 has dropped by then, or that leaves a tie of FP32
  // which one tiny term decides.
  CaseGenerator cases(28);
  const std::int64_t m = 12, n = 66, k = 40;
  std::vector<float> a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(n * k), 1.0f);
  for (std::int64_t r = 0; r < m; ++r) {
    float* const row = a.data() + r * k;
    const float tiny =
        std::ldexp(cases.bits() % 2 == 0 ? 1.0f : -1.0f, -30 - 9 * static_cast<int>(r));
    row[0] = 0x1p60f;
    row[7] = -0x1p60f;
    row[3] = 1.0f + 0x1p-23f * static_cast<float>(r % 4);
    row[11] = r % 3 == 0 ? -row[3] : 0x1p-24f;
    row[r % 2 == 0 ? 5 : 20] = tiny;
  }
  for (std::int64_t i = 0; i < n * k; ++i) {
    if (i / k % 3 == 1) b[static_cast<std::size_t>(i)] = -0x1p-126f;
    if (i / k % 3 == 2) b[static_cast<std::size_t>(i)] = 0x1p-149f;
  }
  check_exact(a, b, k, Schedule::fast);
  for (float& value : a) value *= 0x1p-80f;  // sums below FP32, of which only the sign is left
  check_exact(a, b, k, Schedule::fast);
}

TEST_CASE("FP64 sums are called exact up to 53 bits, and signs of zeros are those of the sum") {
  const float odd[] = {0.0f, -0x1.000002p0f, 0.0f, 0x1p-3f};
  const numerics::ExactExtent narrow = cpu::exact_extent(odd, 4);
  CHECK(narrow.bits == 24);
  CHECK(narrow.norm >= std::sqrt(1.015625));
  CHECK(narrow.norm < 1.008);
  const float wide[] = {0x1p20f, 3 * 0x1p-149f};
  CHECK(cpu::exact_extent(wide, 2).bits == 170);
  CHECK(cpu::exact_extent(wide, 0).bits == 0);
  CHECK(numerics::exact_error_bound(narrow, narrow, 32) == 0.0);  // 24 + 24 + 5
  CHECK(numerics::exact_error_bound(narrow, narrow, 33) >= 33 * 0x1p-53);
  // 2^-200 - 2^-200 - 2^-290, of which FP64 keeps nothing, and the same with the other sign.
  const double a[] = {0x1p-100, -0x1p-100, 0x1p-149};
  const double columns[] = {0x1p-100, 0x1p-100, 0x1p-100, 0x1p-100, -0x1p-141, 0x1p-141};
  const double sums[] = {0.0, 0.0}, errors[] = {0x1p-240, 0x1p-240};
  float out[2];
  cpu::round_exactly({a, columns, 2, 3, 2, sums, errors}, out);
  CHECK(numerics::float_bits(out[0]) == 0x80000000u);
  CHECK(numerics::float_bits(out[1]) == 0u);
}

TEST_CASE("sums that cancel are exact where their FP64 sum proves nothing") {
  // Cancelling pairs around small terms, so that most sums are not proven at first.
  CaseGenerator cases(77);
  int in_doubt = 0;
  for (const std::int64_t k : {3, 8, 17, 64, 301}) {
    constexpr std::int64_t kColumns = 24;
    for (int repeat = 0; repeat < 40; ++repeat) {
      std::vector<float> a(static_cast<std::size_t>(k)), b(static_cast<std::size_t>(k * kColumns));
      const auto drawn = [&](int least, int most) {
        const double value = static_cast<double>(draw(cases, -(1 << 23), 1 << 23)) * 0x1p-23;
        return static_cast<float>(std::ldexp(value, static_cast<int>(draw(cases, least, most))));
      };
      for (float& value : a) value = drawn(-20, 20);
      for (float& value : b) value = drawn(-20, 20);
      for (std::int64_t l = 0; l + 1 < k; l += 2) {
        a[static_cast<std::size_t>(l + 1)] = -a[static_cast<std::size_t>(l)];
        for (std::int64_t j = 0; j < kColumns; ++j) {
          const auto at = static_cast<std::size_t>(l * kColumns + j);
          b[at + kColumns] = repeat % 2 == 0 ? b[at] : std::nextafter(b[at], 1.0f);
        }
      }
      const std::vector<double> wide_a(a.begin(), a.end()), wide_b(b.begin(), b.end());
      std::vector<double> sums(kColumns), errors(kColumns);
      std::vector<float> out(kColumns), column(static_cast<std::size_t>(k));
      std::vector<numerics::ExactSum> exact(kColumns);
      for (std::size_t j = 0; j < kColumns; ++j) {
        for (std::size_t l = 0; l < column.size(); ++l) {
          column[l] = b[l * kColumns + j];
          sums[j] = std::fma(wide_a[l], wide_b[l * kColumns + j], sums[j]);
          exact[j].add_product(a[l], column[l]);
        }
        errors[j] = numerics::exact_error_bound(cpu::exact_extent(a.data(), k),
                                                cpu::exact_extent(column.data(), k), k);
        in_doubt +=
            static_cast<float>(sums[j] - errors[j]) != static_cast<float>(sums[j] + errors[j]);
      }
      cpu::round_exactly(
          {wide_a.data(), wide_b.data(), kColumns, k, kColumns, sums.data(), errors.data()},
          out.data());
      for (std::size_t j = 0; j < kColumns; ++j) {
        INFO("k " << k << ", column " << j);
        CHECK(numerics::float_bits(out[j]) == exact[j].rounded());
      }
    }
  }
  CHECK(in_doubt > 2000);
}

TEST_CASE("products in FP64 are sums of fused multiply-adds, whatever the blocks") {
  CaseGenerator cases(78);
  // More rows, columns and products than a block has, and fewer than a vector.
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {3, 70, 5}, {50, 2100, 3}, {7, 65, 1100}, {2, 3, 0}}) {
    std::vector<float> a(static_cast<std::size_t>(m * k)), b(static_cast<std::size_t>(n * k));
    for (std::vector<float>* values : {&a, &b}) {
      for (float& value : *values) {
        value = static_cast<float>(std::ldexp(static_cast<double>(draw(cases, -1000, 1000)),
                                              static_cast<int>(draw(cases, -60, 60))));
      }
    }
    std::vector<double> d(static_cast<std::size_t>(m * n), 1.0);
    cpu::f64_product(a.data(), m, b.data(), n, k, d.data());
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < m * n; ++i) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        sum = std::fma(static_cast<double>(a[static_cast<std::size_t>(i / n * k + l)]),
                       static_cast<double>(b[static_cast<std::size_t>(i % n * k + l)]), sum);
      }
      different += d[static_cast<std::size_t>(i)] != sum ? 1 : 0;
    }
    INFO(m << " x " << n << " x " << k);
    CHECK(different == 0);
  }
}
