// The scales that kernels find by one addition, or two divisions, are those of the definition.
#include <catch2/catch.hpp>

#include "emulation/numerics/ordinary_scales.hpp"

using namespace fp8lab::numerics;

namespace {

/// Every mantissa in the binades at both ends of the range, in its middle and around one.
constexpr std::uint32_t kFields[] = {47, 48, 100, 126, 127, 128, 150, 205, 206};

bool equal(const TileScale& a, const TileScale& b) {
  return float_bits(a.decode) == float_bits(b.decode) &&
         float_bits(a.multiplier) == float_bits(b.multiplier) && a.divide == b.divide;
}

std::int64_t differences(const ScaleRule& rule, FormatSpec element, std::int64_t& compared) {
  const OrdinaryScales scales = ordinary_scales(rule, element);
  std::int64_t wrong = 0;
  for (const std::uint32_t field : kFields) {
    for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += field == 127 ? 1 : 37) {
      const std::uint32_t bits = field << 23 | mantissa;
      if (!scales.holds_for(bits)) continue;
      ++compared;
      if (!equal(scales.scale(bits), tile_scale(rule, element, bits_float(bits)))) ++wrong;
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("steps give the scales of the definition") {
  for (const FormatSpec& element : {kE4M3, kE5M2, kE2M1}) {
    for (const ScaleRounding rounding :
         {ScaleRounding::nearest, ScaleRounding::ceil, ScaleRounding::enc_floor,
          ScaleRounding::ocp_floor, ScaleRounding::rceil, ScaleRounding::even}) {
      for (const ScaleFormat format : {ScaleFormat::pow2, ScaleFormat::e8m0}) {
        ScaleRule rule;
        rule.format = format;
        rule.rounding = rounding;
        rule.margin = rounding == ScaleRounding::ceil ? 3 : 0;
        CAPTURE(static_cast<int>(rounding), static_cast<int>(format));
        std::int64_t compared = 0;
        CHECK(differences(rule, element, compared) == 0);
        CHECK(compared > 9'000'000);
      }
    }
  }
}

TEST_CASE("quotients give the scales of the definition") {
  for (const FormatSpec& element : {kE4M3, kE5M2, kE2M1}) {
    for (const ScaleArithmetic arithmetic :
         {ScaleArithmetic::enc_div, ScaleArithmetic::dec_div_recip, ScaleArithmetic::dec_div}) {
      for (const int margin : {0, 3, -20, 20}) {
        ScaleRule rule;
        rule.arithmetic = arithmetic;
        rule.margin = margin;
        CAPTURE(static_cast<int>(arithmetic), margin);
        std::int64_t compared = 0;
        CHECK(differences(rule, element, compared) == 0);
        CHECK(compared > 9'000'000);
      }
    }
  }
}

TEST_CASE("ordinary scales hold for nothing that they do not describe") {
  ScaleRule rule;
  for (const ScaleFormat format :
       {ScaleFormat::bf16, ScaleFormat::e4m3, ScaleFormat::nv_two_level}) {
    rule.format = format;
    CHECK(ordinary_scales(rule, kE4M3).count == 0);
  }
  rule.format = ScaleFormat::e8m0;
  CHECK(ordinary_scales(rule, kE4M3).count != 0);
  for (const std::uint32_t bits : {0u, 1u, 0x00800000u, kF32MaxFinite, kF32Infinity, kF32NaN}) {
    CHECK_FALSE(ordinary_scales(rule, kE4M3).holds_for(bits));
  }
  rule.amax_epsilon = 0x1p-10f;  // smaller amaxes are raised
  CHECK_FALSE(ordinary_scales(rule, kE4M3).holds_for(float_bits(0x1.8p-11f)));
  CHECK(ordinary_scales(rule, kE4M3).holds_for(float_bits(0x1p-10f)));
  rule.epsilon_mode = EpsilonMode::add;
  CHECK(ordinary_scales(rule, kE4M3).count == 0);
  rule.amax_epsilon = 0.0f;
  CHECK(ordinary_scales(rule, kE4M3).count != 0);
  rule.margin = 60;
  CHECK(ordinary_scales(rule, kE4M3).count == 0);
}
