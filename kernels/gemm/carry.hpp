// Operand codes brought into the form that a GEMM kernel reads.
#pragma once

#include <cstdint>

#include "emulation/backend.hpp"
#include "emulation/numerics/format.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// What a kernel reads: codes in `format`, in `order`, lines 16-byte aligned when `aligned`.
struct CarriedForm {
  numerics::FormatSpec format;
  StorageOrder order = StorageOrder::k_contiguous;
  bool aligned = false;
};

/// Codes of one operand in such a form, lines `stride` elements apart.
struct CarriedCodes {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

/// Whether the operand's own memory serves.
bool carried_already(const QuantizedOperand& operand, const CarriedForm& form);

/// Bytes of a carried copy, a multiple of 256.
std::size_t carried_bytes(const QuantizedOperand& operand, const CarriedForm& form);

/// Writes the carried copy to `memory`: every code decoded and encoded in the format (8, 16 or 32
/// bits), which must hold its value. Lines start at multiples of 16 bytes.
CarriedCodes carry(Context& context, const QuantizedOperand& operand, const CarriedForm& form,
                   void* memory);

}  // namespace fp8lab::cuda
