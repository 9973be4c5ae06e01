// The plainest quantizer: scales of the present values by the default rule.
#pragma once

#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Returns a quantizer to `format` with current scaling of `tile`, by the default rule of `scale`.
inline QuantSpec quantized(const numerics::FormatSpec& format, TileShape tile,
                           numerics::ScaleFormat scale = numerics::ScaleFormat::fp32) {
  QuantSpec spec;
  spec.format = format;
  spec.tile = tile;
  spec.scale.format = scale;
  spec.scale_source = ScaleSource::current;
  return spec;
}

}  // namespace fp8lab
