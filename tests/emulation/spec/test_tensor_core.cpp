// Every tensor-core profile: what it says of itself, hand-worked groups, and what all have in
// common.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "emulation/numerics/schedule.hpp"
#include "emulation/spec/gemm_rules.hpp"
#include "emulation/spec/tensor_core.hpp"

namespace {

using namespace fp8lab;
using namespace fp8lab::numerics;

using Codes = std::vector<std::uint32_t>;

// Codes of values that `format` holds.
Codes codes_of(const FormatSpec& format, const std::vector<float>& values) {
  Codes codes;
  for (const float value : values) {
    codes.push_back(encode(format, float_bits(value), Rounding::nearest, Overflow::special));
    REQUIRE(decode(format, codes.back()) == value);
  }
  return codes;
}

ElementGemm element_of(const TensorCoreProfile& profile, const BlockScale& scale) {
  ElementGemm element;
  element.unit = profile.accumulator.unit;
  element.group = profile.accumulator.group;
  element.format_a = element.format_b = profile.accumulator.operand;
  if (profile.accumulator.group.block_scales) {
    element.scale_format = block_scale_format(scale.format);
    element.scale_width_a = element.scale_width_b = scale.width;
  }
  return element;
}

// The chain over the products a[i] * b[i] from +0, all block scales 1 unless given.
float chain_of(Accumulator accumulator, const std::vector<float>& a, const std::vector<float>& b,
               BlockScale scale = {}, std::vector<float> sa = {}, std::vector<float> sb = {}) {
  const TensorCoreProfile& profile = *profile_of(accumulator);
  if (scale.width == 0) scale = profile.accumulator.block_scales[0];
  sa.resize(a.size(), 1.0f);
  sb.resize(a.size(), 1.0f);
  const ElementGemm element = element_of(profile, scale);
  const Codes x = codes_of(profile.accumulator.operand, a),
              y = codes_of(profile.accumulator.operand, b);
  const auto k = static_cast<std::int64_t>(a.size());
  return chain(element, x.data(), y.data(), 0, k, sa.data(), sb.data());
}

// `values`, then zeros up to `size`.
std::vector<float> padded(std::vector<float> values, std::size_t size) {
  values.resize(size, 0.0f);
  return values;
}

}  // namespace

TEST_CASE("an accumulator without a name is its parameters") {
  Accumulator longer = Accumulator::sm90_wgmma_fp8;
  longer.group.fraction_bits = 14;
  longer.group.output_mantissa_bits = 23;
  CHECK(profile_of(longer) == nullptr);
  const std::string name = "custom(products=32,fraction_bits=14,output_mantissa_bits=23)";
  CHECK(accumulator_name(longer) == name);
  CHECK(accumulator_by_name(name) == longer);
  CHECK(describe(longer) == "groups of 32, 14 fraction bits, fp32 cut to 23 bits");
  // The parameters of a named one are that one.
  CHECK(accumulator_by_name("custom(products=16,fraction_bits=25,output_mantissa_bits=23,"
                            "min_exponent=-133,operand=bf16)") == Accumulator::sm90_bf16);

  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    Accumulator drawn = Accumulator::sm90_wgmma_fp8;
    const bool half = random() % 3 == 0;
    drawn.group.products = 1 + static_cast<int>(random() % 32);
    drawn.group.fraction_bits = static_cast<int>(random() % 49);
    drawn.group.output = half ? OutputKind::f16_nearest : OutputKind::f32_truncated;
    drawn.group.output_mantissa_bits = half ? 10 : 1 + static_cast<int>(random() % 23);
    drawn.group.alignment = random() % 2 == 0 ? Alignment::truncate : Alignment::nearest_even;
    drawn.group.output_rounding = random() % 2 == 0 ? Alignment::truncate : Alignment::nearest_even;
    if (random() % 2 == 0) drawn.group.min_exponent = -static_cast<int>(random() % 301);
    if (!half && random() % 3 == 0) {
      drawn.group.min_exponent = kNoExponentFloor;
      drawn.group.late_fraction_bits =
          std::max(1, drawn.group.fraction_bits) +
          static_cast<int>(random() % static_cast<unsigned>(49 - drawn.group.fraction_bits));
      drawn.group.late_fraction_bits = std::min(drawn.group.late_fraction_bits, 48);
      drawn.group.partial_sums = 1 + static_cast<int>(random() % 4);
    }
    const FormatSpec operands[] = {kE4M3, kE5M2, kBF16, kFP16, kTF32, kE2M1, kE4M3Fnuz};
    drawn.operand = operands[random() % std::size(operands)];
    drawn.takes_e5m2 = drawn.operand == kE4M3 || drawn.operand == kE4M3Fnuz;
    INFO(accumulator_name(drawn));
    CHECK(accumulator_refusal(drawn) == "");
    CHECK(accumulator_by_name(accumulator_name(drawn)) == drawn);
  }
  for (const char* wrong : {"custom(products=0)",
                            "custom(products=33)",
                            "custom(fraction_bits=49)",
                            "custom(fraction_bits=x)",
                            "custom(output_mantissa_bits=24)",
                            "custom(min_exponent=-301)",
                            "custom(products)",
                            "custom(bits=3)",
                            "custom(output=bf16)",
                            "custom(operand=e8m0)",
                            "custom(operand=int8)",
                            "custom(operand=fp32)",
                            "custom(partial_sums=2)",
                            "custom(partial_sums=0)",
                            "custom(partial_sums=5,late_fraction_bits=20)",
                            "custom(late_fraction_bits=12)",
                            "custom(late_fraction_bits=49)",
                            "custom(late_fraction_bits=-1)",
                            "custom(late_fraction_bits=20,output=fp16)",
                            "custom(late_fraction_bits=20,min_exponent=-126)",
                            "custom(output_mantissa_bits=9,output=fp16,output_mantissa_bits=9)"}) {
    INFO(wrong);
    CHECK_THROWS_AS(accumulator_by_name(wrong), AccumulatorError);
  }
  CHECK(accumulator_by_name("custom") == std::nullopt);
}

TEST_CASE("every accumulator has one profile that names its evidence") {
  std::set<std::string> names;
  std::set<std::string> canonical;
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    INFO(profile.name);
    CHECK(names.insert(std::string(profile.name)).second);
    CHECK(accumulator_by_name(profile.name) == profile.accumulator);
    // A record of several chips has the name of the first.
    const bool first = profile_of(profile.accumulator) == &profile;
    CHECK(first == canonical.insert(accumulator_name(profile.accumulator)).second);
    if (first) CHECK(accumulator_name(profile.accumulator) == profile.name);
    CHECK(!profile.source.empty());
    CHECK(!profile.checked.empty());
    const bool measured = profile.evidence == Evidence::measured;
    CHECK(measured ==
          (profile.source.find("emulation/specification.md") != std::string_view::npos));
    // Nobody measured it: the text must say so.
    if (profile.evidence == Evidence::published) {
      CHECK(profile.checked.find("not on hardware") != std::string_view::npos);
    }
    GemmSpec spec;
    spec.accumulator = profile.accumulator;
    const QuantSpec own = profile.accumulator.default_operand();
    CHECK_FALSE(refuse_gemm(spec, own, own, "a", "b").has_value());
  }
  CHECK(names.size() == 33);
  CHECK(canonical.size() == 22);
  CHECK(accumulator_name(*accumulator_by_name("sm100_mma_sync_fp8")) == "sm90_mma_sync_fp8");
  CHECK(accumulator_name(*accumulator_by_name("sm89_bf16")) == "sm80_bf16");
  CHECK(profile_of(Accumulator::sm90_bf16)->evidence == Evidence::measured);
  CHECK(operand_names(Accumulator::sm89_mma_fp8) == "e4m3fn e5m2");
  CHECK(operand_names(Accumulator::cdna3_fp8) == "e4m3fnuz e5m2fnuz");
  CHECK(Accumulator::cdna3_fp8.carrier(kE5M2Fnuz) == kE5M2Fnuz);
  CHECK_FALSE(Accumulator::cdna3_fp8.carrier(kE5M2).has_value());
  CHECK(describe(Accumulator::cdna3_fp8) ==
        "groups of 16, 24 fraction bits, 2 sums, c added last with 31, fp32 nearest 23 bits");
}

TEST_CASE("sm90_wgmma_fp8_f16 aligns with 13 bits and rounds to nearest even") {
  const auto sum = [](std::vector<float> a, std::vector<float> b) {
    return chain_of(Accumulator::sm90_wgmma_fp8_f16, a, b);
  };
  CHECK(sum({1, 0x1p-5f}, {1, 0x1p-6f}) == 1.0f);              // a tie, to even
  CHECK(sum({1, 0x1.8p-4f}, {1, 0x1p-6f}) == 1.0f + 0x1p-9f);  // the next tie, to even
  CHECK(sum({1, 0x1p-5f, 0x1p-6f}, {1, 0x1p-6f, 0x1p-7f}) == 1.0f + 0x1p-10f);
  CHECK(sum({1, 0x1p-5f, 0x1p-6f}, {1, 0x1p-6f, 0x1p-8f}) == 1.0f);  // 2^-14 is below the grid
  CHECK(sum({448, 448}, {448, 448}) == bits_float(kF32Infinity));
  // The second group starts from the rounded first.
  CHECK(sum(padded({1, 0x1p-5f}, 33), padded({1, 0x1p-6f}, 33)) == 1.0f);
}

TEST_CASE("sm89_mma_fp8 sums 16 products at a time") {
  // 16 products of 2^-14 first: they make 2^-10 before the one of 1 can cut them.
  std::vector<float> a(17, 0x1p-7f), b(17, 0x1p-7f);
  a[16] = b[16] = 1.0f;
  CHECK(chain_of(Accumulator::sm89_mma_fp8, a, b) == 1.0f + 0x1p-10f);
  CHECK(chain_of(Accumulator::sm90_wgmma_fp8, a, b) == 1.0f);
  std::swap(a[0], a[16]);
  std::swap(b[0], b[16]);
  CHECK(chain_of(Accumulator::sm89_mma_fp8, a, b) == 1.0f);
  // 13 mantissa bits, toward zero: 2^-13 stays, and from 2 on it does not.
  CHECK(chain_of(Accumulator::sm89_mma_fp8, {1, 0x1p-6f}, {1, 0x1p-7f}) == 1.0f + 0x1p-13f);
  CHECK(chain_of(Accumulator::sm89_mma_fp8, {1, 1, 0x1p-6f}, {1, 1, 0x1p-7f}) == 2.0f);
  // With an FP16 accumulator the same groups, rounded to nearest even.
  std::swap(a[0], a[16]);
  std::swap(b[0], b[16]);
  CHECK(chain_of(Accumulator::sm89_mma_fp8_f16, a, b) == 1.0f + 0x1p-10f);
  CHECK(chain_of(Accumulator::sm89_mma_fp8_f16, {1, 0x1p-6f, 0x1p-6f}, {1, 0x1.8p-6f, 0x1p-7f}) ==
        1.0f);  // 1 + 2^-11: a tie
}

TEST_CASE("sm90_mma_sync_fp8_f16 rounds each half, then adds C in FP16") {
  // k % 4 < 2 first: 2048 + 1 is a tie that goes to 2048, and again with the second half.
  CHECK(chain_of(Accumulator::sm90_mma_sync_fp8_f16, {256, 0, 1, 0}, {8, 0, 1, 0}) == 2048.0f);
  CHECK(chain_of(Accumulator::sm90_mma_sync_fp8_f16, {256, 1, 1, 0}, {8, 1, 1, 0}) == 2048.0f);
  CHECK(chain_of(Accumulator::sm90_mma_sync_fp8_f16, {256, 0, 1, 1}, {8, 0, 1, 1}) == 2050.0f);
  // The next instruction's sum is added with a rounding of its own: 2048 + 3 is a tie to 2052.
  std::vector<float> a = padded({256}, 33), b = padded({8}, 33);
  a[32] = 3.0f;
  b[32] = 1.0f;
  CHECK(chain_of(Accumulator::sm90_mma_sync_fp8_f16, a, b) == 2052.0f);
}

TEST_CASE("sm90_f16 keeps 25 bits below the largest exponent") {
  // Two products of 2^-24 make 2^-23; four of 2^-26 are lost one by one.
  CHECK(chain_of(Accumulator::sm90_f16, {1, 0x1p-12f, 0x1p-12f}, {1, 0x1p-12f, 0x1p-12f}) ==
        1.0f + 0x1p-23f);
  CHECK(chain_of(Accumulator::sm90_f16, {1, 0x1p-13f, 0x1p-13f, 0x1p-13f, 0x1p-13f},
                 {1, 0x1p-13f, 0x1p-13f, 0x1p-13f, 0x1p-13f}) == 1.0f);
  // A subnormal counts at -14: 2^-39 is on its grid, 2^-40 is not.
  CHECK(chain_of(Accumulator::sm90_f16, {0x1p-24f, 0x1p-20f}, {1, 0x1p-19f}) ==
        0x1p-24f + 0x1p-39f);
  CHECK(chain_of(Accumulator::sm90_f16, {0x1p-24f, 0x1p-20f}, {1, 0x1p-20f}) == 0x1p-24f);
  CHECK(chain_of(Accumulator::sm90_f16_f16acc, {2048, 1}, {1, 1}) == 2048.0f);
  CHECK(chain_of(Accumulator::sm90_f16_f16acc, {2048, 1, 1}, {1, 1, 1}) == 2050.0f);
  std::vector<float> a = padded({2048, 1}, 17);
  a[16] = 1.0f;
  CHECK(chain_of(Accumulator::sm90_f16_f16acc, a, std::vector<float>(17, 1.0f)) == 2048.0f);
}

TEST_CASE("sm90_tf32 sums 8 products at a time") {
  const float small = 0x1p-12f;
  std::vector<float> a = padded({1, small, small}, 9);
  std::vector<float> b = a;
  CHECK(chain_of(Accumulator::sm90_tf32, a, b) == 1.0f + 0x1p-23f);
  std::swap(a[2], a[8]);
  std::swap(b[2], b[8]);  // now in the next group: each is cut from the result
  CHECK(chain_of(Accumulator::sm90_tf32, a, b) == 1.0f);
  CHECK(chain_of(Accumulator::sm90_tf32, {0x1p-70f}, {0x1p-70f}) == 0x1p-140f);
  CHECK(chain_of(Accumulator::sm90_tf32, {0x1p-80f}, {0x1p-79f}) == 0.0f);
}

namespace {

/// Sums of 1 and products of 2^-exponent, which are cut below 2^-fraction_bits.
void check_fraction_bits(const Accumulator& accumulator, int fraction_bits) {
  const auto part = [](int exponent) { return std::ldexp(1.0f, -exponent); };
  const int low = fraction_bits / 2, high = fraction_bits - low;
  if (accumulator.group.output == OutputKind::f16_nearest) {
    // 1 + 2^-11 is a tie, which goes to 1 unless anything is left above it.
    const auto sum = [&](int first, int second) {
      return chain_of(accumulator, {1, part(5), part(first)}, {1, part(6), part(second)});
    };
    CHECK(sum(low, high) == 1.0f + 0x1p-10f);
    CHECK(sum(low, high + 1) == 1.0f);
    return;
  }
  // 2 - 2^-F is 2 - 2^-23 or below after truncation; 2^-(F + 1) is cut before that.
  const auto sum = [&](int first, int second) {
    return chain_of(accumulator, {1, 1, -part(first)}, {1, 1, part(second)});
  };
  CHECK(sum(low, high) < 2.0f);
  CHECK(sum(low, high + 1) == 2.0f);
}

/// Two products of which the first is 2^-150 (1 + 2^-bits), the second 2^-150 (1 - 2^-bits).
float tiny_sum(const Accumulator& accumulator, int bits) {
  const float more = std::ldexp(1.0f, -bits), less = std::ldexp(1.0f, 1 - bits);
  return chain_of(accumulator, {(1 + more) * 0x1p-75f, (2 - less) * 0x1p-76f},
                  {0x1p-75f, 0x1p-75f});
}

}  // namespace

TEST_CASE("sm_70 sums 4 products with 23 fraction bits, sm_80 8 with 24, Hopper 16 with 25") {
  for (const Accumulator& accumulator : {Accumulator::sm70_f16, Accumulator::sm70_f16_f16acc}) {
    check_fraction_bits(accumulator, 23);
    CHECK(accumulator.products() == 4);
  }
  for (const Accumulator& accumulator :
       {Accumulator::sm80_bf16, Accumulator::sm80_f16, Accumulator::sm80_f16_f16acc}) {
    check_fraction_bits(accumulator, 24);
    CHECK(accumulator.products() == 8);
  }
  check_fraction_bits(Accumulator::sm80_tf32, 24);
  CHECK(Accumulator::sm80_tf32.products() == 4);
  for (const Accumulator& accumulator : {Accumulator::sm90_bf16, Accumulator::sm90_f16,
                                         Accumulator::sm90_f16_f16acc, Accumulator::sm90_tf32}) {
    check_fraction_bits(accumulator, 25);
  }
  // FP32 is cut, not rounded: 1 + 2^-24 + 2^-24 is on the grid, 1 + 3 x 2^-24 is not.
  const std::vector<float> b = {1, 0x1p-12f, 0x1p-12f, 0x1p-12f};
  CHECK(chain_of(Accumulator::sm80_f16, b, b) == 1.0f + 0x1p-23f);
  CHECK(chain_of(Accumulator::sm70_f16, b, b) == 1.0f);
}

TEST_CASE("the floor of the common exponent is -132 on sm_80, -133 on Hopper and Blackwell") {
  // The grid of a tiny group is 2^(-132 - 24) and 2^(-133 - 25); the exact sum is 2^-149.
  for (const Accumulator& accumulator : {Accumulator::sm80_bf16, Accumulator::sm80_tf32}) {
    CHECK(tiny_sum(accumulator, 6) == 0x1p-149f);
    CHECK(tiny_sum(accumulator, 7) == 0.0f);
  }
  CHECK(tiny_sum(Accumulator::sm90_tf32, 8) == 0x1p-149f);
  CHECK(tiny_sum(Accumulator::sm90_tf32, 9) == 0.0f);
}

TEST_CASE("sm100_f8f6f4 keeps 25 bits and rounds to FP32 toward zero") {
  std::vector<float> a(9, 0x1p-9f), b(9, 1.0f);
  a[0] = b[0] = 448.0f;  // counts at 16: the grid is 2^-9
  CHECK(chain_of(Accumulator::sm100_f8f6f4, a, b) == 200704.0f + 0x1p-6f);
  a[8] = 0.0f;  // seven units of 2^-9 are less than one of the result
  CHECK(chain_of(Accumulator::sm100_f8f6f4, a, b) == 200704.0f);
  std::fill(b.begin() + 1, b.end(), 0.5f);  // below the grid, one by one
  std::fill(a.begin() + 1, a.end(), 0x1p-9f);
  CHECK(chain_of(Accumulator::sm100_f8f6f4, a, b) == 200704.0f);
  CHECK(chain_of(Accumulator::sm100_f8f6f4, {1, 0x1p-9f}, {1, 0x1p-9f}) == 1.0f + 0x1p-18f);
}

TEST_CASE("sm100_mxf8f6f4 counts products with their scales") {
  constexpr Accumulator kMx = Accumulator::sm100_mxf8f6f4;
  CHECK(chain_of(kMx, {1.5f}, {3}, {}, {0x1p10f}, {0x1p-3f}) == 576.0f);
  // 32 + c, c the sum of the group before: the grid is 2^(5 - 25).
  std::vector<float> a = padded({1}, 33), b = padded({1}, 33);
  a[32] = b[32] = 1.0f;
  const auto plus = [&](float first, float sign) {
    a[0] = sign;
    return chain_of(kMx, a, b, {}, {first, 0x1p5f}, {});
  };
  CHECK(plus(0x1p-18f, 1) == 32.0f + 0x1p-18f);
  CHECK(plus(0x1p-21f, -1) == 32.0f);
  CHECK(plus(0x1p-20f, -1) == 32.0f - 0x1p-19f);
  CHECK(chain_of(kMx, {1}, {1}, {}, {0x1p-100f}, {0x1p-40f}) == 0x1p-140f);
  // The floor of -126 puts the grid at 2^-151, the result on 2^-149.
  CHECK(chain_of(kMx, {1, 1, 1, 1}, {1, 1, 1, 1}, {}, {0x1p-100f}, {0x1p-51f}) == 0x1p-149f);
  CHECK(chain_of(kMx, {1, 1, 1, 1}, {1, 1, 1, 1}, {}, {0x1p-100f}, {0x1p-52f}) == 0.0f);
  CHECK(chain_of(kMx, {448}, {448}, {}, {0x1p120f}, {1}) == bits_float(kF32Infinity));
  CHECK(std::isnan(chain_of(kMx, {0}, {0}, {}, {bits_float(kF32NaN)}, {1})));
}

TEST_CASE("sm100_mxf4nvf4 sums 16 products exactly before it aligns them") {
  constexpr Accumulator kNv = Accumulator::sm100_mxf4nvf4;
  const BlockScale by_16 = kNv.block_scales[1];
  REQUIRE(by_16.width == 16);
  CHECK(chain_of(kNv, std::vector<float>(16, 6.0f), std::vector<float>(16, 6.0f), by_16, {1.75f},
                 {1}) == 1008.0f);
  // Subnormal e4m3 scales, and an addend from the group before.
  std::vector<float> a(80, 0.0f), b(80, 0.0f), sa(5, 1.0f), sb(5, 1.0f);
  a[0] = b[0] = a[64] = b[64] = 1.0f;
  sa[0] = sb[0] = sa[4] = 0x1p-9f;
  CHECK(chain_of(kNv, a, b, by_16, sa, sb) == 0x1p-9f + 0x1p-18f);
  // Blocks that cancel leave a grid by their scales alone, whatever their sums were: 2^(0 - 35).
  const BlockScale by_32 = kNv.block_scales[0];
  const auto wide = [&](float scale, float small) {
    std::vector<float> x(128, 0.0f), y(128, 0.0f);
    x[0] = y[0] = 1.0f;
    for (std::size_t i = 64; i < 80; ++i) {
      x[i] = 6.0f;
      x[i + 16] = -6.0f;
    }
    std::fill(y.begin() + 64, y.end(), 6.0f);
    return chain_of(kNv, x, y, by_32, {small, 1, scale, 1}, {});
  };
  CHECK(wide(1.0f, 0x1p-35f) == 0x1p-35f);
  CHECK(wide(1.0f, 0x1p-36f) == 0.0f);
  CHECK(wide(0x1p-6f, 0x1p-41f) == 0x1p-41f);
  CHECK(wide(0x1p-6f, 0x1p-42f) == 0.0f);
}

TEST_CASE("where nothing is cut every profile is exact") {
  std::mt19937 generator(3);
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> a, b;
      float exact = 0.0f;
      for (int i = 0; i < 150; ++i) {
        a.push_back(static_cast<float>(generator() % 5) - 2.0f);
        b.push_back(static_cast<float>(generator() % 5) - 2.0f);
        exact += a.back() * b.back();
      }
      INFO(profile.name);
      CHECK(chain_of(profile.accumulator, a, b) == exact);
    }
  }
}

namespace {

// Finite codes over the whole range of a format.
Codes any_codes(std::mt19937& generator, const FormatSpec& format, int count) {
  Codes codes;
  while (codes.size() < static_cast<std::size_t>(count)) {
    const auto code =
        static_cast<std::uint32_t>(generator()) & (format.sign_mask() | format.magnitude_mask());
    const bool finite = !format.is_nan(code) && !format.is_infinity(code);
    if (finite) codes.push_back(code);
  }
  return codes;
}

struct Drawn {
  Codes a, b;
  std::vector<float> sa, sb;
  std::int64_t k = 0;
};

Drawn draw(std::mt19937& generator, const TensorCoreProfile& profile, int count) {
  Drawn drawn;
  drawn.a = any_codes(generator, profile.accumulator.operand, count);
  drawn.b = any_codes(generator, profile.accumulator.operand, count);
  for (int i = 0; i < count; ++i) {
    drawn.sa.push_back(std::ldexp(1.0f, static_cast<int>(generator() % 8) - 4));
    drawn.sb.push_back(std::ldexp(1.0f, static_cast<int>(generator() % 8) - 4));
  }
  drawn.k = count;
  return drawn;
}

float sum_of(const TensorCoreProfile& profile, const Drawn& d) {
  const ElementGemm element = element_of(profile, profile.accumulator.block_scales[0]);
  return chain(element, d.a.data(), d.b.data(), 0, d.k, d.sa.data(), d.sb.data());
}

}  // namespace

TEST_CASE("the order inside a group changes nothing") {
  std::mt19937 generator(4);
  int moved = 0;
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    if (profile.accumulator.unit == ChainUnit::ideal_fp32) continue;
    INFO(profile.name);
    // Elements that one exact sum takes, in the order in which it is fed.
    const int width =
        profile.accumulator.group.exact_products > 0 ? profile.accumulator.group.exact_products
        : profile.accumulator.unit == ChainUnit::ideal_exact  ? 32
        : profile.accumulator.unit == ChainUnit::mma_sync_fp8 ? 2
                                                              : profile.accumulator.group.products;
    for (int round = 0; round < 50; ++round) {
      Drawn drawn = draw(generator, profile, 96);
      const float before = sum_of(profile, drawn);
      const Drawn original = drawn;
      for (std::size_t begin = 0; begin < 96; begin += static_cast<std::size_t>(width)) {
        std::vector<std::size_t> order(
            std::min<std::size_t>(static_cast<std::size_t>(width), 96 - begin));
        std::iota(order.begin(), order.end(), begin);
        std::shuffle(order.begin(), order.end(), generator);
        const auto sums = static_cast<std::size_t>(profile.accumulator.group.partial_sums);
        std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) {
          return (x - begin) % sums < (y - begin) % sums;
        });
        for (std::size_t i = 0; i < order.size(); ++i) {
          // The members of the first sum come first, then those of the next.
          const std::size_t member = i * sums;
          const std::size_t to = begin + member % order.size() + member / order.size();
          drawn.a[to] = original.a[order[i]];
          drawn.b[to] = original.b[order[i]];
          moved += order[i] != to;
        }
      }
      CHECK(float_bits(sum_of(profile, drawn)) == float_bits(before));
    }
  }
  CHECK(moved > 1000);
}

TEST_CASE("a tensor core cuts magnitudes: negated operands give the negated sum") {
  std::mt19937 generator(5);
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    INFO(profile.name);
    if (profile.accumulator.group.late_fraction_bits > 0) continue;  // rounds down
    const bool truncates = profile.accumulator.group.output == OutputKind::f32_truncated &&
                           profile.accumulator.unit == ChainUnit::fused_group;
    for (int round = 0; round < 100; ++round) {
      Drawn drawn = draw(generator, profile, 70);
      Drawn negated = drawn;
      for (std::uint32_t& code : negated.a) code ^= profile.accumulator.operand.sign_mask();
      const float sum = sum_of(profile, drawn);
      CHECK((sum == -sum_of(profile, negated) || std::isnan(sum)));
      // Terms of one sign: never above the exact sum.
      for (std::uint32_t& code : drawn.a) code &= profile.accumulator.operand.magnitude_mask();
      for (std::uint32_t& code : drawn.b) code &= profile.accumulator.operand.magnitude_mask();
      if (!truncates || profile.accumulator.group.block_scales) continue;
      ElementGemm exact = element_of(profile, {});
      exact.unit = ChainUnit::ideal_exact;
      const float bound = chain(exact, drawn.a.data(), drawn.b.data(), 0, drawn.k, drawn.sa.data(),
                                drawn.sb.data());
      CHECK(sum_of(profile, drawn) <= bound);
    }
  }
}

TEST_CASE("block scales are those of the instruction, on both sides") {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm100_mxf8f6f4;
  QuantSpec mx = spec.accumulator.default_operand();
  const auto refusal = [&](const QuantSpec& a, const QuantSpec& b) {
    return refuse_gemm(spec, a, b, "a", "b").value_or(ErrorFields{});
  };
  CHECK(refusal(mx, mx) == ErrorFields{});
  QuantSpec plain = mx;
  plain.scale_source = ScaleSource::none;
  CHECK(refusal(mx, plain).accepted == "tiles of 32 along K with e8m0 scales");
  QuantSpec coarse = mx;
  coarse.tile = {1, 64};
  CHECK(refusal(coarse, mx).reason.find("a is") != std::string::npos);
  QuantSpec power = mx;
  power.scale.format = ScaleFormat::fp32;
  CHECK(refusal(power, mx).key == "accumulator");
  spec.scale_order = ScaleOrder::b_then_a;
  CHECK(refusal(mx, mx).key == "scale_order");
  CHECK(refusal(mx, mx).accepted == "automatic, in_instruction");
  spec = {};
  spec.accumulator = Accumulator::sm100_mxf4nvf4;
  QuantSpec nv = spec.accumulator.default_operand();
  CHECK(nv.tile.cols == 16);
  CHECK(nv.format == kE2M1);
  CHECK(refusal(nv, nv) == ErrorFields{});
  QuantSpec by_32 = nv;
  by_32.tile = {1, 32};
  by_32.scale.format = ScaleFormat::e8m0;
  CHECK(refusal(by_32, by_32) == ErrorFields{});
  CHECK(refusal(nv, by_32).reason.find("one kind of scales") != std::string::npos);
  QuantSpec wide = nv;
  wide.format = kE4M3;
  CHECK(refusal(wide, nv).reason.find("cannot multiply") != std::string::npos);
  spec.accumulator = Accumulator::sm90_f16;
  CHECK(refusal(QuantSpec{}, QuantSpec{}).reason.find("cannot multiply a, which is bf16") !=
        std::string::npos);
  spec.scale_order = ScaleOrder::in_instruction;
  QuantSpec half;
  half.format = kFP16;
  CHECK(refusal(half, half).reason.find("takes no block scales") != std::string::npos);
}
