// Operand codes brought into the form that a GEMM kernel reads.
#pragma once

#include <cstdint>

#include "emulation/backend.hpp"
#include "emulation/numerics/format.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// K-contiguous codes of one operand in a carrier format, rows `stride` elements apart.
struct CarriedCodes {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

/// Whether the operand's own memory serves: same format, and rows 16-byte aligned when `aligned`.
bool carried_already(const QuantizedOperand& operand, const numerics::FormatSpec& format,
                     bool aligned);

/// Bytes of a carried copy, a multiple of 256.
std::size_t carried_bytes(const QuantizedOperand& operand, const numerics::FormatSpec& format);

/// Writes the carried copy to `memory`: every code decoded and encoded in `format` (8, 16 or 32
/// bits), which must hold its value. Rows start at multiples of 16 bytes.
CarriedCodes carry(Context& context, const QuantizedOperand& operand,
                   const numerics::FormatSpec& format, void* memory);

}  // namespace fp8lab::cuda
