// Operand statistics on the device, bit for bit those of emulation/cpu/statistics.hpp.
#pragma once

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

/// cpu::operand_statistics. Everything that grows with the tensor is read, summed and hashed on the
/// device; what follows from the sums of bands, counts and column amaxes is computed here, so this
/// waits for the stream.
OperandStatistics operand_statistics(Context& context, const TensorView& source, bool transpose,
                                     const QuantizedOperand& operand);

}  // namespace fp8lab::cuda
