// Hashes of tensors and quantized operands, for the run file.
#pragma once

#include <cstdint>

#include "emulation/ops/optimizer/hash_tensors.hpp"
#include "emulation/ops/quantize/operand.hpp"

namespace fp8lab::reference {

/// Returns the hash of codes and scales that numerics::hash_term defines. Precondition: the
/// operand has been checked.
std::uint64_t operand_hash(const QuantizedOperand& operand);

/// Returns the sum that ops::HashTensors adds for one tensor.
std::uint64_t tensor_hash(numerics::HashedPart part, const TensorView& tensor, std::uint64_t first);

/// Implements ops::HashTensors.
void hash_tensors(const ops::HashTensors& op);

}  // namespace fp8lab::reference
