#include "emulation/ops/gemm/given_operand.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/scaling.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using numerics::ScaleFormat;

bool is_value_of(const FormatSpec& format, float value) {
  const std::uint32_t code = numerics::encode(format, numerics::float_bits(value));
  return numerics::decode(format, code) == value;
}

/// Returns whether scale = RN(factor 2^e), at most the largest FP32 number, for an exponent
/// that tile_scale can have.
bool is_power_times(float factor, float scale) {
  if (!(scale > 0.0f) || std::isinf(scale)) return false;
  const int near = std::ilogb(scale) - std::ilogb(factor);
  for (int exponent = near - 1; exponent <= near + 1; ++exponent) {
    if (exponent < -127 || exponent > 127) continue;
    const float value = factor * numerics::power_of_two(exponent);
    if (std::min(value, std::numeric_limits<float>::max()) == scale) return true;
  }
  return false;
}

/// Returns whether `spec` can store `scale` in a tile, regardless of the other tiles.
bool holds(const QuantSpec& spec, float scale) {
  if (spec.scale_source == ScaleSource::static_scale) return scale == spec.static_scale;
  switch (spec.scale.format) {
    case ScaleFormat::fp32: return true;
    case ScaleFormat::pow2:
      // 1 is also the scale of a tile with an element that is no number.
      return scale == 1.0f || is_power_times(spec.scale.factor, scale);
    case ScaleFormat::e8m0: return std::isnan(scale) || is_value_of(numerics::kE8M0, scale);
    case ScaleFormat::bf16: return std::isnan(scale) || is_value_of(numerics::kBF16, scale);
    case ScaleFormat::e4m3:
      return std::isnan(scale) || (!std::signbit(scale) && is_value_of(numerics::kE4M3, scale));
    case ScaleFormat::nv_two_level:
      return std::isnan(scale) || (!std::signbit(scale) && std::isfinite(scale));
  }
  return false;
}

std::string accepted_scales(const QuantSpec& spec) {
  if (spec.scale_source == ScaleSource::static_scale) {
    return fmt::format("the static scale {}", spec.static_scale);
  }
  switch (spec.scale.format) {
    case ScaleFormat::fp32: return "any FP32 number";
    case ScaleFormat::pow2:
      return spec.scale.factor == 1.0f
                 ? std::string("powers of two from 2^-127 to 2^127")
                 : fmt::format("powers of two from 2^-127 to 2^127 times {}", spec.scale.factor);
    case ScaleFormat::e8m0: return "powers of two from 2^-127 to 2^127, and NaN";
    case ScaleFormat::bf16: return "finite BF16 numbers and NaN";
    case ScaleFormat::e4m3: return "E4M3 numbers without a sign up to 448, and NaN";
    case ScaleFormat::nv_two_level:
      return fmt::format("E4M3 numbers without a sign times one FP32 factor{}",
                         spec.scale.outer == numerics::OuterScale::row ? " of the row" : "");
  }
  return {};
}

/// Returns whether there is an E4M3 number s with RN(s * factor) = scale.
bool is_multiple(float factor, float scale) {
  const std::uint32_t code =
      numerics::encode(numerics::kE4M3, numerics::float_bits(scale / factor));
  return numerics::decode(numerics::kE4M3, code) * factor == scale;
}

/// Returns whether one FP32 factor makes every scale the product of an E4M3 number and this factor.
/// Tries the factors for which the largest scale is such a product. Below 2^-100 products may be
/// rounded as subnormals, which hides the factor.
bool have_common_factor(const std::vector<float>& scales) {
  const float largest = scales.empty() ? 0.0f : *std::max_element(scales.begin(), scales.end());
  if (largest < 0x1p-100f) return true;
  for (std::uint32_t code = 0x7E; code > 0; --code) {
    float factor = largest / numerics::decode(numerics::kE4M3, code);
    for (int step = 0; step < 2; ++step) factor = std::nextafter(factor, 0.0f);
    for (int step = 0; step < 5; ++step) {
      const auto fits = [factor](float scale) { return is_multiple(factor, scale); };
      if (factor > 0.0f && std::all_of(scales.begin(), scales.end(), fits)) return true;
      factor = std::nextafter(factor, std::numeric_limits<float>::infinity());
    }
  }
  return false;
}

}  // namespace

void check_given_codes(const std::string& name, const TensorView& codes, const FormatSpec& format) {
  if (format.bits() >= 8) return;
  for (std::int64_t r = 0; r < codes.rows; ++r) {
    const auto* const row = codes.row<const std::uint8_t>(r);
    for (std::int64_t j = 0; j < codes.cols; ++j) {
      if (row[j] >> format.bits() == 0) continue;
      throw Error(fmt::format(
          "{}: element ({}, {}) is {:#04x}, but codes of {} have {} bits; accepted: one "
          "code in each byte, below {:#04x}",
          name, r, j, row[j], format_name(format), format.bits(), 1u << format.bits()));
    }
  }
}

void check_given_scales(const std::string& name, const TensorView& scales, const QuantSpec& spec) {
  const std::int64_t tiles = scales.cols / spec.tile_numbers();
  const bool has_two_levels = spec.scale_source != ScaleSource::static_scale &&
                              spec.scale.format == ScaleFormat::nv_two_level;
  const bool has_row_factors = has_two_levels && spec.scale.outer == numerics::OuterScale::row;
  std::vector<float> numbers;
  for (std::int64_t r = 0; r < scales.rows; ++r) {
    if (has_row_factors) numbers.clear();
    for (std::int64_t j = 0; j < tiles; ++j) {
      const float scale = scales.row<const float>(r)[j];
      if (!holds(spec, scale)) {
        throw Error(
            fmt::format("{}: scale {} of tile ({}, {}) cannot be stored by {}; accepted: {}", name,
                        scale, r, j, label(spec), accepted_scales(spec)));
      }
      if (!std::isnan(scale)) numbers.push_back(scale);
    }
    const bool is_last = r + 1 == scales.rows;
    if (!has_two_levels || (!has_row_factors && !is_last) || have_common_factor(numbers)) continue;
    throw Error(fmt::format("{}: no FP32 factor makes these the scales of {}; accepted: {}", name,
                            label(spec), accepted_scales(spec)));
  }
}

}  // namespace fp8lab
