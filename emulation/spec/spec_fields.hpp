// The keys of a recipe's slot and GEMM tables: the fields of QuantSpec and GemmSpec, and the
// defaults of a scale rule. Recipe files, words, labels, hashes and help share them.
#pragma once

#include <string>
#include <string_view>
#include "emulation/spec/fields.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Returns the keys of a slot table, in the order of label(). Their conditions concern one operand;
/// a recipe also checks which operands a key affects.
const Fields<QuantSpec>& quant_fields();

/// Returns the names of the formats that take a scale, for messages: "e4m3fn, e5m2, ...".
std::string quantized_format_names();

/// Returns the keys of a GEMM table.
const Fields<GemmSpec>& gemm_fields();

/// Returns `spec` with every field that changes no code and no scale at its default. Two specs
/// quantize alike if these are equal.
QuantSpec effective(const QuantSpec& spec);

/// Returns the default rounding of a power-of-two scale. No element saturates under enc_floor
/// (pow2: TransformerEngine, torchao) and rceil (e8m0: the conversion of Blackwell,
/// TransformerEngine). `is_ocp` is for the alias mx32: it returns ocp_floor, the rounding of the
/// standard, under which the largest elements of some tiles saturate.
numerics::ScaleRounding default_scale_rounding(numerics::ScaleFormat format, bool is_ocp);

}  // namespace fp8lab
