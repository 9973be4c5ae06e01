#include "emulation/spec/quant_rules.hpp"

#include <fmt/format.h>

#include <cmath>

#include "emulation/numerics/tile_deviation.hpp"
#include "emulation/spec/estimator.hpp"

namespace fp8lab {
namespace {

using QuantVerdict = std::optional<ErrorFields>;

QuantVerdict refuse_elements(const QuantSpec& spec) {
  const std::string name = format_name(spec.format);
  if (!spec.format.has_sign) {
    return ErrorFields{.key = "format",
                       .found = fmt::format("'{}'", name),
                       .reason = "cannot be an operand",
                       .accepted = "signed formats of at least 3 bits"};
  }
  if (!spec.is_quantized() && spec.has_scale()) {
    return ErrorFields{.key = "scale_source",
                       .found = name,
                       .reason = "has more than 8 bits and takes no scale",
                       .accepted = "none"};
  }
  return {};
}

QuantVerdict refuse_rounding(const QuantSpec& spec) {
  const bool has_grid = spec.format.encoding == numerics::Encoding::floating ||
                        spec.format.encoding == numerics::Encoding::twos_complement;
  const std::string name = format_name(spec.format);
  if (spec.random_bits < 0 || spec.random_bits > 32 ||
      (spec.random_bits > 0 && spec.rounding != numerics::Rounding::stochastic)) {
    return ErrorFields{.key = "rounding",
                       .found = fmt::format("{} random bits", spec.random_bits),
                       .accepted = "1 to 32 of stochastic rounding"};
  }
  if (spec.random_bits > 0 && !has_grid) {
    return ErrorFields{.key = "rounding",
                       .found = rounding_name(spec.rounding, spec.random_bits),
                       .reason = fmt::format("discards bits of a significand, format is {}", name),
                       .accepted = "stochastic, or a floating or integer format"};
  }
  if (spec.via == numerics::kFP32) return {};
  if (!is_via_format(spec.via)) {
    return ErrorFields{.key = "via",
                       .found = format_name(spec.via),
                       .accepted = "fp32, bf16, fp16, or eXmY with infinity and more than 8 bits"};
  }
  if (spec.is_cast() && spec.format.encoding != numerics::Encoding::tile_logarithm) return {};
  return ErrorFields{.key = "via",
                     .found = format_name(spec.via),
                     .reason = fmt::format("before a cast to {}", name),
                     .accepted = "fp32, or a format other than bf16, fp32 and logfmtN"};
}

QuantVerdict refuse_tile(const QuantSpec& spec) {
  if (spec.tile.rows < 0 || spec.tile.cols < 0) {
    return ErrorFields{.key = "tile",
                       .accepted = "tensor, row, or RxC with both extents at least 1"};
  }
  if (spec.tile.is_tensor()) return {};
  const auto refusal = [&](const char* reason) {
    return ErrorFields{.key = "scale_source",
                       .reason = fmt::format("{}, tile is {}", reason, tile_name(spec.tile)),
                       .accepted = "tile = \"tensor\", or scale_source = \"current\""};
  };
  if (spec.scale_source == ScaleSource::delayed) {
    return refusal("delayed scaling keeps one history a tensor");
  }
  if (spec.scale_source == ScaleSource::static_scale) {
    return refusal("a static scale is one number");
  }
  return {};
}

QuantVerdict refuse_codebook(const QuantSpec& spec) {
  if (!spec.has_codebooks()) return {};
  const bool expands = spec.transform.is<RangeExpansion>();
  const std::string name = expands ? transform_name(spec.transform) : format_name(spec.format);
  if (spec.scale_source != ScaleSource::current) {
    return ErrorFields{.key = "scale_source",
                       .found = name,
                       .reason = "has the codebook of each tile",
                       .accepted = "current"};
  }
  if (spec.scale != numerics::ScaleRule{}) {
    return ErrorFields{.key = "scale_format",
                       .found = name,
                       .reason = "has the codebook of each tile",
                       .accepted = "no keys of a scale rule"};
  }
  if (expands && spec.format != numerics::kE4M3) {
    return ErrorFields{
        .key = "transform",
        .reason = fmt::format("expand fits values to the range of e4m3fn, format is {}",
                              format_name(spec.format)),
        .accepted = "none, or format = \"e4m3fn\""};
  }
  return {};
}

QuantVerdict refuse_statistic(const QuantSpec& spec) {
  const numerics::ScaleRule& rule = spec.scale;
  if (!spec.has_scale() || rule.deviations == 0.0f) return {};
  const std::string name = statistic_name(rule.deviations);
  if (spec.scale_source != ScaleSource::current ||
      rule.format == numerics::ScaleFormat::nv_two_level) {
    return ErrorFields{.key = "scale_statistic",
                       .found = name,
                       .reason = "is that of the tile",
                       .accepted = "amax, or scale_source = \"current\" with a scale of one level"};
  }
  const TileShape& tile = spec.tile;
  const bool is_bounded = tile.rows > 0 && tile.cols > 0;
  // Divides, because the product of two extents may overflow.
  if (is_bounded && tile.rows <= numerics::kLargestDeviationTile / tile.cols) return {};
  return ErrorFields{.key = "scale_statistic",
                     .found = name,
                     .reason = fmt::format("of tile {}", tile_name(tile)),
                     .accepted = fmt::format("amax, or a tile RxC of at most {} elements",
                                             numerics::kLargestDeviationTile)};
}

QuantVerdict refuse_factor(const QuantSpec& spec) {
  if (!spec.has_scale() || spec.scale.factor == 1.0f) return {};
  if (spec.scale.factor <= 0.5f) {
    return ErrorFields{
        .key = "scale_factor",
        .reason = "0.5 makes what x is multiplied with infinite at the smallest scale",
        .accepted = "a number above 0.5"};
  }
  if (spec.scale.format == numerics::ScaleFormat::pow2) return {};
  return ErrorFields{.key = "scale_factor",
                     .reason = "multiplies powers of two held in FP32",
                     .accepted = "1, or scale_format = \"pow2\""};
}

QuantVerdict refuse_scale(const QuantSpec& spec) {
  const bool two_level =
      spec.has_scale() && spec.scale.format == numerics::ScaleFormat::nv_two_level;
  if (two_level && (spec.scale_source != ScaleSource::current || spec.tile.is_tensor())) {
    return ErrorFields{.key = "scale_format",
                       .reason = "nv_two_level scales tiles within a tensor",
                       .accepted = "scale_source = \"current\" and a tile other than tensor"};
  }
  if (!two_level && spec.scale.four_over_six != numerics::FourOverSix::none) {
    return ErrorFields{.key = "four_over_six",
                       .reason = "is for two-level scales",
                       .accepted = "scale_format = \"nv_two_level\""};
  }
  if (!two_level && spec.scale.outer != numerics::OuterScale::tensor) {
    return ErrorFields{.key = "outer_scale",
                       .reason = "is for two-level scales",
                       .accepted = "scale_format = \"nv_two_level\""};
  }
  if (spec.scale.outer == numerics::OuterScale::row && spec.tile.rows != 1) {
    return ErrorFields{.key = "outer_scale",
                       .found = "row",
                       .reason = fmt::format("with tile {}", tile_name(spec.tile)),
                       .accepted = "tensor, or a tile of one row such as 1x16"};
  }
  if (spec.scale_source == ScaleSource::delayed && spec.history_length < 1) {
    return ErrorFields{.key = "history",
                       .found = fmt::to_string(spec.history_length),
                       .accepted = "at least 1 step"};
  }
  if (spec.scale_source == ScaleSource::static_scale &&
      !(spec.static_scale > 0.0f && std::isfinite(spec.static_scale))) {
    return ErrorFields{.key = "static_scale", .accepted = "a finite number above 0"};
  }
  return {};
}

}  // namespace

bool is_via_format(const numerics::FormatSpec& format) {
  return format == numerics::kFP32 ||
         (format.encoding == numerics::Encoding::floating && format.bits() > 8 && format.has_sign &&
          format.has_subnormals && format.specials == numerics::SpecialValues::ieee);
}

std::optional<ErrorFields> refuse_quantizer(const QuantSpec& spec) {
  for (const auto rule : {refuse_elements, refuse_rounding, refuse_tile, refuse_codebook,
                          refuse_scale, refuse_statistic, refuse_factor}) {
    QuantVerdict refusal = rule(spec);
    if (!refusal) continue;
    refusal->verb = ":";
    return refusal;
  }
  return {};
}

}  // namespace fp8lab
