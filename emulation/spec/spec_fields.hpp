// The keys of a recipe's slot and GEMM tables: the fields of QuantSpec and GemmSpec, and what a
// scale rule is when nothing is said about it. The same for recipe files, words, labels, hashes and
// help.
#pragma once

#include <string_view>
#include "emulation/spec/fields.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// The keys of a slot table, in the order of label(). The conditions are those of one operand; a
/// recipe also asks which operands a key reaches.
const Fields<QuantSpec>& quant_fields();

/// The keys of a GEMM table.
const Fields<GemmSpec>& gemm_fields();

/// `spec` with every field that changes no code and no scale at its default. Two specs quantize
/// alike when these are equal.
QuantSpec effective(const QuantSpec& spec);

/// The rounding of a power-of-two scale for which none is given. No element saturates under
/// enc_floor (pow2: TransformerEngine, torchao) and rceil (e8m0: the conversion of Blackwell,
/// TransformerEngine). `is_ocp` is for the alias mx32: ocp_floor, as the standard has it, under
/// which the largest elements of some tiles do.
numerics::ScaleRounding default_scale_rounding(numerics::ScaleFormat format, bool is_ocp);

}  // namespace fp8lab
