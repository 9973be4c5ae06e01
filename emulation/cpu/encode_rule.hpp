// The rule by which vector kernels encode elements, from a quantizer.
#pragma once

#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab::cpu {

/// Returns the rule for elements that are scaled by `spec`.
inline EncodeRule encode_rule(const QuantSpec& spec) {
  return {spec.format.exponent_bits,
          spec.format.mantissa_bits,
          spec.format.bias,
          static_cast<std::int32_t>(spec.format.specials),
          static_cast<std::int32_t>(spec.format.encoding),
          static_cast<std::int32_t>(spec.rounding),
          static_cast<std::int32_t>(spec.overflow),
          spec.has_scale() && spec.scale.divides(),
          spec.random_bits,
          spec.via.exponent_bits,
          spec.via.mantissa_bits,
          spec.via.bias};
}

}  // namespace fp8lab::cpu
