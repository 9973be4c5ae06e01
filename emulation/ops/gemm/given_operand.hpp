// Checks codes and scales that a caller provides instead of values to quantize: the quantizer must
// be able to produce them.
#pragma once

#include <string>

#include "emulation/base/tensor_view.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Throws Error if an element of `codes` (u8, in host memory) has more bits than `format`. The
/// message calls the codes `name`.
void check_given_codes(const std::string& name, const TensorView& codes,
                       const numerics::FormatSpec& format);

/// Throws Error unless every scale (f32, in host memory) is one that `spec` can store: the static
/// one; a power of two, times the factor of the spec; a value of E8M0 or BF16; an E4M3 value
/// without a sign, under nv_two_level times one FP32 factor of all. FP32 scales may be any number.
/// NaN passes if the format has a code for it. `scales` may have the further numbers of codebooks
/// after the columns of the scales.
void check_given_scales(const std::string& name, const TensorView& scales, const QuantSpec& spec);

}  // namespace fp8lab
