// Random products of operands that are quantized first.
#pragma once

#include "emulation/cases/case_draw.hpp"

namespace fp8lab {

/// Draws a case named "quantize and gemm": both operands quantized, multiplied, and where their
/// transforms ask for it, rotated back and compensated; the statistics of the left one.
/// Orientations and types are drawn.
void draw_quantized_product(CaseDraw& draw, const GemmSpec& gemm, const QuantSpec& a,
                            const QuantSpec& b);

}  // namespace fp8lab
