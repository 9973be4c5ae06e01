// Which fields of a quantizer matter, and what a scale rule is when nothing is said about it: the
// same for recipe files, for words and for labels.
#pragma once

#include <string_view>

#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Whether a field of the scale rule, by its key in recipe files, matters to scales of this format
/// and arithmetic.
bool shapes_scale(std::string_view key, const numerics::ScaleRule& rule);

/// `spec` with every field that changes no code and no scale at its default. Two specs quantize
/// alike when these are equal.
QuantSpec effective(const QuantSpec& spec);

/// The rounding of a power-of-two scale for which none is given. No element saturates under
/// enc_floor (pow2: TransformerEngine, torchao) and rceil (e8m0: the conversion of Blackwell,
/// TransformerEngine). `is_ocp` is for the alias mx32: ocp_floor, as the standard has it, under
/// which the largest elements of some tiles do.
numerics::ScaleRounding default_scale_rounding(numerics::ScaleFormat format, bool is_ocp);

}  // namespace fp8lab
