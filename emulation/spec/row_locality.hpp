// Independence of the rows of an operand in quantization.
#pragma once

#include <string>

#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Returns why the codes or scales of a row depend on the rows that are quantized with it, or on
/// its position among them; empty if they do not. The rows of fprop.x are tokens: if this is empty,
/// tokens can be processed in any grouping with the same bits. It is empty for current scales of
/// tiles of one row, static scales, casts without a scale, Hadamard transforms of K, and delayed
/// scales once their history has left its warm-up.
std::string row_mixing(const QuantSpec& spec);

}  // namespace fp8lab
