#include "emulation/spec/spec_fields.hpp"

namespace fp8lab {
namespace {

using numerics::ScaleFormat;
using numerics::ScaleRounding;
using numerics::ScaleRule;

ScaleRule effective(const ScaleRule& rule) {
  const ScaleRule plain;
  ScaleRule result = rule;
  if (!shapes_scale("scale_rounding", rule)) result.rounding = plain.rounding;
  if (!shapes_scale("scale_arithmetic", rule)) result.arithmetic = plain.arithmetic;
  if (!shapes_scale("amax_epsilon", rule)) result.amax_epsilon = plain.amax_epsilon;
  if (!shapes_scale("margin", rule)) result.margin = plain.margin;
  if (!shapes_scale("epsilon_mode", rule)) result.epsilon_mode = plain.epsilon_mode;
  if (!shapes_scale("encode_limit", rule)) result.encode_limit = plain.encode_limit;
  if (!shapes_scale("scale_overflow", rule)) result.scale_overflow = plain.scale_overflow;
  if (!shapes_scale("four_over_six", rule)) result.four_over_six = plain.four_over_six;
  return result;
}

/// A format of more than 8 bits: values are cast at most, and have no scale.
QuantSpec effective_values(const QuantSpec& spec) {
  QuantSpec result;
  result.format = spec.format;
  if (spec.is_cast()) {
    result.rounding = spec.rounding;
    result.overflow = spec.overflow;
    result.transform = spec.transform;
  }
  result.orientation_source = spec.orientation_source;
  result.weight_source = spec.weight_source;
  return result;
}

}  // namespace

bool shapes_scale(std::string_view key, const ScaleRule& rule) {
  const bool two_level = rule.format == ScaleFormat::nv_two_level;
  if (key == "scale_rounding") return rule.is_power_of_two();
  if (key == "scale_overflow") return rule.format == ScaleFormat::e8m0;
  if (key == "four_over_six") return two_level;
  if (key == "epsilon_mode") return !two_level && rule.amax_epsilon != 0.0f;
  if (key == "encode_limit") {
    return !two_level && !rule.is_power_of_two() &&
           rule.arithmetic == numerics::ScaleArithmetic::enc_div;
  }
  return !two_level;
}

QuantSpec effective(const QuantSpec& spec) {
  if (!spec.is_quantized()) return effective_values(spec);
  const QuantSpec plain;
  QuantSpec result = spec;
  if (spec.scale_source == ScaleSource::none || spec.scale_source == ScaleSource::static_scale) {
    result.tile = plain.tile;
    result.scale = plain.scale;
  }
  result.scale = spec.has_codebooks() ? plain.scale : effective(result.scale);
  if (spec.scale_source != ScaleSource::delayed) {
    result.history_length = plain.history_length;
    result.amax_algorithm = plain.amax_algorithm;
    result.warmup_steps = plain.warmup_steps;
  }
  if (spec.scale_source != ScaleSource::static_scale) result.static_scale = plain.static_scale;
  return result;
}

ScaleRounding default_scale_rounding(ScaleFormat format, bool is_ocp) {
  if (format == ScaleFormat::pow2) return ScaleRounding::enc_floor;
  if (format == ScaleFormat::e8m0) return is_ocp ? ScaleRounding::ocp_floor : ScaleRounding::rceil;
  return ScaleRule{}.rounding;
}

}  // namespace fp8lab
