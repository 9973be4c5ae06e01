// Rules for which GEMMs can be computed, shared by recipes, plans and every backend.
#pragma once

#include <optional>
#include <string>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Returns why a GEMM is impossible, with the key of its table in a recipe ("schedule",
/// "accumulator", ...) and no place. Returns empty if `spec` can multiply operands quantized by `a`
/// and `b`, which messages call `name_a` and `name_b`. Checks everything that does not depend on
/// shapes:
/// - the accumulator multiplies every value of both formats, in their multiplied_form;
/// - a block-scaled accumulator gets the scales that its instruction takes, of the same kind on
///   both sides;
/// - a promotion interval is a positive multiple of the products that one instruction sums;
/// - if other scales change along K, the schedule promotes, and its interval divides the width of
///   both tiles: a chunk then has one scale per row, and the chunks of a tile share the tile's;
/// - scales enter at promotion only if there is a promotion, and in the epilogue only if they are
///   constant along K (specification.md, "K schedules and scale orders");
/// - split_k is 1 to 64 and the output bf16 or f32.
std::optional<ErrorFields> refuse_gemm(const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b,
                                       const std::string& name_a, const std::string& name_b);

}  // namespace fp8lab
