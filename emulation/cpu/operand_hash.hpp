// Hash of a quantized operand, for the run file.
#pragma once

#include <cstdint>

#include "emulation/api/backend.hpp"

namespace fp8lab::cpu {

/// The hash of codes and scales that numerics::hash_term defines. The operand has been checked.
std::uint64_t operand_hash(const QuantizedOperand& operand);

}  // namespace fp8lab::cpu
