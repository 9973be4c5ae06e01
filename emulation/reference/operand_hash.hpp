// Hash of a quantized operand, for the run file.
#pragma once

#include <cstdint>

#include "emulation/ops/operand.hpp"

namespace fp8lab::reference {

/// The hash of codes and scales that numerics::hash_term defines. The operand has been checked.
std::uint64_t operand_hash(const QuantizedOperand& operand);

}  // namespace fp8lab::reference
