#include "emulation/spec/state_rules.hpp"

#include <utility>

#include "emulation/spec/estimator.hpp"
#include "emulation/spec/quant_rules.hpp"

namespace fp8lab {

std::int64_t stored_tiles(const QuantSpec& spec, std::int64_t n) {
  if (spec.scale_source != ScaleSource::current || n == 0) return 0;
  return (n + state_tile(spec, n) - 1) / state_tile(spec, n);
}

QuantSpec as_operand(const QuantSpec& spec) {
  QuantSpec operand = spec;
  if (spec.has_scale() && !spec.is_quantized()) operand.format = numerics::kE5M2;
  return operand;
}

std::string state_label(const QuantSpec& spec) {
  const QuantSpec operand = as_operand(spec);
  return format_name(spec.format) + label(operand).substr(format_name(operand.format).size());
}

std::optional<ErrorFields> refuse_state(const QuantSpec& spec) {
  if (is_plain_state(spec)) return {};
  const std::string name = format_name(spec.format);
  const auto refusal = [](std::string found, std::string reason, std::string accepted) {
    return ErrorFields{
        .found = std::move(found), .reason = std::move(reason), .accepted = std::move(accepted)};
  };
  if (!spec.format.has_sign) return refusal(name, "has no sign", "signed formats");
  if (spec.format.bits() > 16) {
    return refusal(name, "has more than 16 bits", "fp32, or a format of at most 16 bits");
  }
  if (spec.format.encoding == numerics::Encoding::tile_logarithm) {
    return refusal(name, "has a codebook of each tile", "formats whose codes have fixed values");
  }
  if (spec.scale_source == ScaleSource::delayed) {
    return refusal("", "a state is scaled by its own amax", "no delayed scale");
  }
  if (spec.has_scale() && spec.scale.format == numerics::ScaleFormat::nv_two_level) {
    return refusal("", "two-level scales are for operands", "a scale format of one level");
  }
  if (spec.has_scale() && spec.scale.deviations != 0.0f) {
    return refusal("scale_statistic " + statistic_name(spec.scale.deviations), "is for operands",
                   "amax");
  }
  if (spec.tile.rows > 1 || spec.tile.is_row()) {
    return refusal("tile " + tile_name(spec.tile), "; a state is one row of all elements",
                   "tensor, or 1xC such as 1x128");
  }
  if (spec.transform && !spec.transform.is<RangeExpansion>()) {
    return refusal("transform " + transform_name(spec.transform), "", "expand, or none");
  }
  // Rules that hold for operands as well: codebooks, static scales.
  std::optional<ErrorFields> of_operands = refuse_quantizer(as_operand(spec));
  if (of_operands) of_operands->key.clear();
  return of_operands;
}

}  // namespace fp8lab
