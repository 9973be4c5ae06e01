#include "emulation/spec/row_locality.hpp"

#include <fmt/format.h>

namespace fp8lab {
namespace {

std::string mixing_of(const Transform& transform) {
  if (const auto* const smoothing = transform.as<Smoothing>()) {
    return smoothing->is_static ? "its smoothing factors are those of the first rows it has seen"
                                : "its smoothing factors are taken from all rows";
  }
  if (transform.is<Clamp>()) return "its clamp is at quantiles of all rows";
  return transform.is_left() ? "its Hadamard transform runs along the rows" : "";
}

std::string mixing_of_tile(const QuantSpec& spec) {
  if (spec.scale_source != ScaleSource::current) return "";
  if (spec.scale.format == numerics::ScaleFormat::nv_two_level) {
    if (spec.scale.outer == numerics::OuterScale::row) return "";  // of tiles of one row
    return "its two-level scales have a factor of the whole tensor";
  }
  if (spec.tile.is_tensor()) return "one scale is taken from the whole tensor";
  if (spec.tile.rows == 0) return "a scale is taken from all rows";
  return spec.tile.rows == 1 ? "" : fmt::format("{} rows share a scale", spec.tile.rows);
}

}  // namespace

std::string row_mixing(const QuantSpec& spec) {
  if (const std::string reason = mixing_of(spec.transform); !reason.empty()) return reason;
  if (!spec.is_cast()) return "";
  if (spec.rounding == numerics::Rounding::stochastic) {
    return "the random bits of its rounding belong to places, not to rows";
  }
  return mixing_of_tile(spec);
}

}  // namespace fp8lab
