// Whether the rows of an operand are quantized each by itself.
#pragma once

#include <string>

#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Why the codes or scales of a row depend on the rows that are quantized with it, or on its place
/// among them; empty where they do not. The rows of fprop.x are tokens: where this is empty, tokens
/// may come in any pieces and in any company, with the same bits. It is for scales of current tiles
/// of one row, static scales, casts without a scale, Hadamard transforms of K, and for delayed
/// scales once their history has left its warm-up.
std::string row_mixing(const QuantSpec& spec);

}  // namespace fp8lab
