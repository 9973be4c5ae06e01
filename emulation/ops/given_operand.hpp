// Codes and scales that a caller gives, instead of values that are quantized: whether the
// quantizer could have made them.
#pragma once

#include <string>

#include "emulation/base/tensor_view.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Throws Error where an element of `codes` (u8, in memory of the host) has more bits than
/// `format`. `name` stands for the codes in the message.
void check_given_codes(const std::string& name, const TensorView& codes,
                       const numerics::FormatSpec& format);

/// Throws Error unless every scale (f32, in memory of the host) is one that `spec` can store: the
/// static one; a power of two, times the factor of the spec; a value of E8M0 or BF16; one of E4M3
/// without a sign, under nv_two_level times one FP32 factor of all. FP32 scales may be any number.
/// NaN passes where the format has a code for it. `scales` may have the further numbers of
/// codebooks behind the columns of the scales.
void check_given_scales(const std::string& name, const TensorView& scales, const QuantSpec& spec);

}  // namespace fp8lab
