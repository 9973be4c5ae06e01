// Converts operand codes to the form that a GEMM kernel reads.
#pragma once

#include <cstdint>

#include "emulation/backend.hpp"
#include "emulation/numerics/format.hpp"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

/// The form that a kernel reads: codes in `format` and `order`; if `aligned`,
/// lines are 16-byte aligned.
struct CarriedForm {
  numerics::FormatSpec format;
  StorageOrder order = StorageOrder::k_contiguous;
  bool aligned = false;
};

/// Codes of one operand in such a form; lines are `stride` elements apart.
struct CarriedCodes {
  const void* data = nullptr;
  std::int64_t stride = 0;
};

/// Returns true if the operand's own memory already has this form.
bool carried_already(const QuantizedOperand& operand, const CarriedForm& form);

/// Returns the size in bytes of a carried copy, a multiple of 256.
std::size_t carried_bytes(const QuantizedOperand& operand, const CarriedForm& form);

/// Writes the carried copy to `memory`: decodes every code and encodes it in the format
/// (8, 16 or 32 bits). Precondition: the format can represent every value. Lines start
/// at multiples of 16 bytes.
CarriedCodes carry(Context& context, const QuantizedOperand& operand, const CarriedForm& form,
                   void* memory);

}  // namespace fp8lab::cuda
