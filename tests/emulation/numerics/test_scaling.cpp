#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/scaling.hpp"

using namespace fp8lab::numerics;

namespace {

constexpr float kFloatMax = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr ScaleFormat kFormats[] = {ScaleFormat::fp32, ScaleFormat::pow2, ScaleFormat::e8m0};
constexpr ScaleRounding kRoundings[] = {
    ScaleRounding::nearest, ScaleRounding::ceil, ScaleRounding::enc_floor, ScaleRounding::ocp_floor,
    ScaleRounding::rceil,   ScaleRounding::even, ScaleRounding::floor};
constexpr ScaleArithmetic kArithmetics[] = {
    ScaleArithmetic::enc_div, ScaleArithmetic::dec_div_recip, ScaleArithmetic::dec_div};
constexpr FormatSpec kElements[] = {kE4M3, kE5M2, kE3M4, kE2M3, kE3M2, kE2M1};

ScaleRule pow2_rule(ScaleRounding rounding) { return {ScaleFormat::pow2, rounding}; }

int exponent_of(const TileScale& scale) { return std::ilogb(scale.decode); }

// Magnitudes over the whole range with many mantissas, range ends included.
std::vector<float> magnitudes() {
  std::vector<float> values = {0x1p-149f, 0x1.8p-148f, 0x1.FFFFFCp-127f, 0x1p-126f, kFloatMax};
  std::uint32_t state = 99;
  for (int exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa :
         {0u, 1u, 0x3504F3u, 0x3504F4u, 0x600000u, 0x600001u, 0x7FFFFFu}) {
      values.push_back(bits_float(static_cast<std::uint32_t>(exponent) << 23 | mantissa));
    }
    state = state * 1664525u + 1013904223u;
    values.push_back(bits_float(static_cast<std::uint32_t>(exponent) << 23 | state >> 9));
  }
  std::vector<float> nonzero;
  for (const float value : values) {
    if (value != 0.0f) nonzero.push_back(value);
  }
  return nonzero;
}

// Exponents by long double arithmetic: quotients of 24-bit significands differ from a power of two
// and from its square root by more than its rounding error.
int expected_ceil(float amax, float qmax) {
  const long double ratio = static_cast<long double>(amax) / static_cast<long double>(qmax);
  const int floor = std::ilogb(ratio);
  return std::ldexp(1.0L, floor) == ratio ? floor : floor + 1;
}

int expected_nearest(float amax, float qmax) {
  const long double ratio = static_cast<long double>(amax) / static_cast<long double>(qmax);
  const int floor = std::ilogb(ratio);
  return std::ldexp(ratio, -floor) > std::sqrt(2.0L) ? floor + 1 : floor;
}

int clamped(int exponent) { return std::min(127, std::max(-127, exponent)); }

}  // namespace

TEST_CASE("fp32 scales follow the three arithmetics") {
  for (const FormatSpec element : kElements) {
    const float qmax = max_finite(element);
    for (const float amax : {3.0f, 0.1f, 1e-20f, 7e10f, 448.0f, 447.99997f}) {
      ScaleRule rule;
      rule.arithmetic = ScaleArithmetic::enc_div;
      const TileScale enc = tile_scale(rule, element, amax);
      CHECK(enc.multiplier == qmax / amax);
      CHECK(enc.decode == 1.0f / (qmax / amax));
      CHECK_FALSE(enc.divide);
      rule.arithmetic = ScaleArithmetic::dec_div_recip;
      const TileScale recip = tile_scale(rule, element, amax);
      CHECK(recip.decode == amax / qmax);
      CHECK(recip.multiplier == 1.0f / (amax / qmax));
      CHECK_FALSE(recip.divide);
      rule.arithmetic = ScaleArithmetic::dec_div;
      const TileScale divided = tile_scale(rule, element, amax);
      CHECK(divided.decode == amax / qmax);
      CHECK(divided.divide);
      CHECK(scaled_value(divided, 0.7f) == 0.7f / (amax / qmax));
      CHECK(scaled_value(enc, 0.7f) == 0.7f * (qmax / amax));
    }
  }
}

TEST_CASE("zero, infinite and NaN amax give encode factor 1 (TransformerEngine)") {
  for (const ScaleArithmetic arithmetic : kArithmetics) {
    ScaleRule rule;
    rule.arithmetic = arithmetic;
    for (const float amax : {0.0f, kInfinity, std::nanf("")}) {
      const TileScale scale = tile_scale(rule, kE4M3, amax);
      CHECK(scale.decode == 1.0f);
      CHECK(scale.multiplier == 1.0f);
    }
  }
  CHECK(tile_scale(pow2_rule(ScaleRounding::enc_floor), kE4M3, kInfinity).decode == 1.0f);
}

TEST_CASE("an overflowing encode factor becomes the largest finite value") {
  const TileScale enc = tile_scale({}, kE4M3, 1e-40f);
  CHECK(enc.multiplier == kFloatMax);
  CHECK(enc.decode == 1.0f / kFloatMax);
  ScaleRule rule;
  rule.arithmetic = ScaleArithmetic::dec_div_recip;
  const TileScale recip = tile_scale(rule, kE4M3, 1e-40f);
  CHECK(recip.multiplier == kFloatMax);
  CHECK(recip.decode == 1.0f / kFloatMax);
  const TileScale floor = tile_scale(pow2_rule(ScaleRounding::enc_floor), kE4M3, 1e-40f);
  CHECK(floor.multiplier == 0x1p127f);
  CHECK(floor.decode == 0x1p-127f);
}

TEST_CASE("amax_epsilon and margin act before the division") {
  ScaleRule rule;
  rule.amax_epsilon = 1e-4f;
  CHECK(tile_scale(rule, kE4M3, 1e-9f).multiplier == 448.0f / 1e-4f);
  CHECK(tile_scale(rule, kE4M3, 0.0f).multiplier == 448.0f / 1e-4f);
  CHECK(tile_scale(rule, kE4M3, 1.0f).multiplier == 448.0f);
  rule = {};
  rule.margin = 2;
  CHECK(tile_scale(rule, kE4M3, 1.0f).multiplier == 112.0f);
  for (const ScaleRounding rounding : kRoundings) {
    ScaleRule pow2 = pow2_rule(rounding);
    const int base = exponent_of(tile_scale(pow2, kE4M3, 3.3f));
    pow2.margin = 3;
    CHECK(exponent_of(tile_scale(pow2, kE4M3, 3.3f)) == base + 3);
  }
}

TEST_CASE("ceil, floor and nearest are decided exactly") {
  for (const FormatSpec element : kElements) {
    const float qmax = max_finite(element);
    for (const float amax : magnitudes()) {
      const TileScale up = tile_scale(pow2_rule(ScaleRounding::ceil), element, amax);
      REQUIRE(exponent_of(up) == clamped(expected_ceil(amax, qmax)));
      const TileScale down = tile_scale(pow2_rule(ScaleRounding::floor), element, amax);
      const long double ratio = static_cast<long double>(amax) / static_cast<long double>(qmax);
      REQUIRE(exponent_of(down) == clamped(std::ilogb(ratio)));
      const TileScale near = tile_scale(pow2_rule(ScaleRounding::nearest), element, amax);
      REQUIRE(exponent_of(near) == clamped(expected_nearest(amax, qmax)));
    }
  }
  // One unit above a power of two times Qmax the exponent has to move.
  CHECK(tile_scale(pow2_rule(ScaleRounding::ceil), kE4M3, 448.0f).decode == 1.0f);
  CHECK(tile_scale(pow2_rule(ScaleRounding::ceil), kE4M3, 0x1.C00002p8f).decode == 2.0f);
  CHECK(tile_scale(pow2_rule(ScaleRounding::ceil), kE2M1, 0x1.800002p2f).decode == 2.0f);
}

TEST_CASE("enc_floor clears the mantissa of the rounded encode factor") {
  for (const FormatSpec element : kElements) {
    for (const float amax : magnitudes()) {
      const float quotient = max_finite(element) / amax;
      const float enc = std::isinf(quotient) ? kFloatMax : quotient;
      const TileScale scale = tile_scale(pow2_rule(ScaleRounding::enc_floor), element, amax);
      REQUIRE(exponent_of(scale) == clamped(-std::ilogb(enc)));
    }
  }
}

TEST_CASE("enc_floor equals ceil: rounding Qmax / amax never crosses a power of two") {
  // Just above Qmax the quotient stays below 1 by more than half a unit; everything else is
  // farther.
  for (const FormatSpec element : kElements) {
    const std::uint32_t qmax = float_bits(max_finite(element));
    for (std::uint32_t bits = qmax - 1000u; bits < qmax + 1000u; ++bits) {
      const float amax = bits_float(bits);
      const TileScale floor = tile_scale(pow2_rule(ScaleRounding::enc_floor), element, amax);
      const TileScale up = tile_scale(pow2_rule(ScaleRounding::ceil), element, amax);
      REQUIRE(floor.decode == up.decode);
      REQUIRE(up.decode == (bits > qmax ? 2.0f : 1.0f));
    }
  }
}

TEST_CASE("ocp_floor subtracts the element's largest exponent") {
  const int emax[] = {8, 15, 4, 2, 4, 2};  // of kElements, OCP MX 1.0
  for (std::size_t i = 0; i < std::size(kElements); ++i) {
    for (const float amax : magnitudes()) {
      const TileScale scale = tile_scale(pow2_rule(ScaleRounding::ocp_floor), kElements[i], amax);
      REQUIRE(exponent_of(scale) == clamped(std::ilogb(amax) - emax[i]));
    }
  }
}

TEST_CASE("rceil rounds the product with the rounded reciprocal up") {
  for (const FormatSpec element : kElements) {
    const float qmax = max_finite(element);
    std::vector<float> values = magnitudes();
    for (std::uint32_t i = 0; i < 8; ++i) values.push_back(bits_float(float_bits(qmax) + i - 4u));
    for (const float amax : values) {
      const auto rounded_up = [](float ratio) {
        if (ratio <= 0x1p-127f) return -127;
        const int floor = std::ilogb(ratio);
        return clamped(std::ldexp(1.0f, floor) == ratio ? floor : floor + 1);
      };
      const int expected = rounded_up(amax * (1.0f / qmax));
      const TileScale scale = tile_scale(pow2_rule(ScaleRounding::rceil), element, amax);
      REQUIRE(exponent_of(scale) == expected);
    }
  }
}

TEST_CASE("even rounds amax to the element's mantissa first") {
  // e4m3 keeps three bits: 1.9375 rounds up to 2, the value below it does not.
  const ScaleRule rule = pow2_rule(ScaleRounding::even);
  CHECK(exponent_of(tile_scale(rule, kE4M3, 1.9375f)) == 1 - 8);
  CHECK(exponent_of(tile_scale(rule, kE4M3, 0x1.EFFFFEp0f)) == 0 - 8);
  CHECK(exponent_of(tile_scale(rule, kE2M1, 1.75f)) == 1 - 2);
  CHECK(exponent_of(tile_scale(rule, kE2M1, 0x1.BFFFFEp0f)) == 0 - 2);
  CHECK(exponent_of(tile_scale(rule, kE5M2, 1.875f)) == 1 - 15);
  CHECK(exponent_of(tile_scale(rule, kE4M3, kFloatMax)) == 128 - 8);
}

TEST_CASE("power-of-two scales have exact reciprocals inside [2^-127, 2^127]") {
  for (const ScaleFormat format : {ScaleFormat::pow2, ScaleFormat::e8m0}) {
    for (const ScaleRounding rounding : kRoundings) {
      for (const ScaleArithmetic arithmetic : kArithmetics) {
        for (const FormatSpec element : kElements) {
          for (const float amax : magnitudes()) {
            const TileScale scale = tile_scale({format, rounding, arithmetic}, element, amax);
            const int exponent = exponent_of(scale);
            REQUIRE(exponent >= -127);
            REQUIRE(scale.decode == std::ldexp(1.0f, exponent));
            REQUIRE(scale.multiplier == std::ldexp(1.0f, -exponent));
            REQUIRE_FALSE(scale.divide);
          }
        }
      }
    }
  }
}

TEST_CASE("a zero tile gets a finite scale and zero codes under every rule") {
  for (const ScaleFormat format : kFormats) {
    for (const ScaleRounding rounding : kRoundings) {
      for (const ScaleArithmetic arithmetic : kArithmetics) {
        for (const FormatSpec element : kElements) {
          const TileScale scale = tile_scale({format, rounding, arithmetic}, element, 0.0f);
          REQUIRE(std::isfinite(scale.decode));
          REQUIRE(scale.decode > 0.0f);
          REQUIRE(encode(element, float_bits(scaled_value(scale, 0.0f))) == 0u);
          REQUIRE(encode(element, float_bits(scaled_value(scale, -0.0f))) == element.sign_mask());
        }
      }
    }
  }
  const ScaleRule mx{ScaleFormat::e8m0, ScaleRounding::rceil};
  CHECK(tile_scale(mx, kE4M3, 0.0f).decode == 0x1p-127f);
  CHECK(tile_scale(pow2_rule(ScaleRounding::ocp_floor), kE4M3, 0.0f).decode == 0x1p-127f);
  CHECK(tile_scale(pow2_rule(ScaleRounding::ceil), kE4M3, 0.0f).decode == 1.0f);
}

TEST_CASE("non-finite amax of an e8m0 tile") {
  for (const ScaleRounding rounding : kRoundings) {
    const ScaleRule rule{ScaleFormat::e8m0, rounding};
    CHECK(std::isnan(tile_scale(rule, kE4M3, std::nanf("")).decode));
    const TileScale scale = tile_scale(rule, kE4M3, kInfinity);
    if (rounding == ScaleRounding::rceil) {
      CHECK(scale.decode == 0x1p127f);
    } else {
      CHECK(std::isnan(scale.decode));
    }
  }
}

TEST_CASE("rules that promise not to saturate do not") {
  for (const ScaleRounding rounding : {ScaleRounding::ceil, ScaleRounding::rceil}) {
    for (const float amax : magnitudes()) {
      if (amax > 0x1p120f) continue;  // the scale is clamped there for narrow formats only
      const TileScale scale = tile_scale(pow2_rule(rounding), kE4M3, amax);
      // rceil may fall short by the rounding of RN(1/448), less than the half step up to 464.
      REQUIRE(scaled_value(scale, amax) <= (rounding == ScaleRounding::ceil ? 448.0f : 448.001f));
    }
  }
}
