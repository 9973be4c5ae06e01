// The parts of export_vectors that files of this folder share.
#pragma once

#include <nlohmann/json.hpp>

#include "emulation/cases/case_generator.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "src/validate/suite.hpp"
#include "src/validate/vector_pack.hpp"

namespace fp8lab {

/// Returns the fields of a rule, or of a quantizer with its rule, by the words of recipe files.
nlohmann::ordered_json describe_rule(const numerics::ScaleRule& rule);
nlohmann::ordered_json describe_quantizer(const QuantSpec& spec);

/// Returns the code of a value that is rounded to `between` first (overflow to infinity) and then
/// to `format`, both to nearest.
std::uint32_t encode_through(const numerics::FormatSpec& format,
                             const numerics::FormatSpec& between, float value,
                             numerics::Overflow overflow);

/// Returns the e8m0 code of the scale of a tile.
std::uint32_t e8m0_scale_code(const numerics::FormatSpec& format, numerics::ScaleRounding rounding,
                              float amax);

/// Adds conversions beside the plain ones: by way of FP16 and BF16 (section through), with 8 and 16
/// random bits, and into e8m0 (section encode).
void export_conversions(VectorPack& pack, CaseGenerator& cases);

/// Adds the table of e8m0 scales: seven rules for amaxes that are zero, NaN, infinite, subnormal,
/// exact powers and their neighbours (section e8m0).
void export_mx_scales(VectorPack& pack);

/// Adds tensors with two levels of scales in tiles of 1x16 (section nvfp4).
void export_nvfp4(VectorPack& pack, CaseGenerator& cases);

/// Adds one entry for each known mistake of a library, to the section that shows it.
void export_named_cases(VectorPack& pack, const Implementation& expected);

}  // namespace fp8lab
