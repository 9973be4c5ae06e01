// The scales that kernels find by one addition are those of the definition.
#include <catch2/catch.hpp>

#include "emulation/numerics/scale_steps.hpp"

using namespace fp8lab::numerics;

namespace {

/// Every mantissa in the binades at both ends of the range, in its middle and around one.
constexpr std::uint32_t kFields[] = {47, 48, 100, 126, 127, 128, 150, 205, 206};

bool equal(const TileScale& a, const TileScale& b) {
  return float_bits(a.decode) == float_bits(b.decode) &&
         float_bits(a.multiplier) == float_bits(b.multiplier) && a.divide == b.divide;
}

std::int64_t differences(const ScaleRule& rule, FormatSpec element, std::int64_t& compared) {
  const ScaleSteps steps = scale_steps(rule, element);
  std::int64_t wrong = 0;
  for (const std::uint32_t field : kFields) {
    for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += field == 127 ? 1 : 37) {
      const std::uint32_t bits = field << 23 | mantissa;
      if (!steps.holds_for(bits)) continue;
      ++compared;
      if (!equal(steps.scale(bits), tile_scale(rule, element, bits_float(bits)))) ++wrong;
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

TEST_CASE("steps hold for nothing that they do not describe") {
  ScaleRule rule;
  CHECK(scale_steps(rule, kE4M3).count == 0);  // FP32 scales
  rule.format = ScaleFormat::e8m0;
  CHECK(scale_steps(rule, kE4M3).count != 0);
  for (const std::uint32_t bits : {0u, 1u, 0x00800000u, kF32MaxFinite, kF32Infinity, kF32NaN}) {
    CHECK_FALSE(scale_steps(rule, kE4M3).holds_for(bits));
  }
  rule.amax_epsilon = 0x1p-10f;  // smaller amaxes are raised
  CHECK_FALSE(scale_steps(rule, kE4M3).holds_for(float_bits(0x1.8p-11f)));
  CHECK(scale_steps(rule, kE4M3).holds_for(float_bits(0x1p-10f)));
  rule.epsilon_mode = EpsilonMode::add;
  CHECK(scale_steps(rule, kE4M3).count == 0);
  rule.amax_epsilon = 0.0f;
  CHECK(scale_steps(rule, kE4M3).count != 0);
  rule.margin = 60;
  CHECK(scale_steps(rule, kE4M3).count == 0);
}
