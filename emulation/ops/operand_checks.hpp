// What an operand may be, and the errors for everything else.
#pragma once

#include <string>

#include "emulation/ops/operand.hpp"

namespace fp8lab {

/// Why an operation is refused; empty when it is supported.
struct Support {
  std::string reason;
  explicit operator bool() const { return reason.empty(); }
};

/// Whether tensors can be quantized by `spec`, on any backend.
Support supports_quantization(const QuantSpec& spec);

/// The codes and scales of an operand. `where` begins the message. Throws Error.
void check_operand(const char* where, const QuantizedOperand& operand);

/// The same for an operand to be written: K contiguous.
void check_written_operand(const char* where, const QuantizedOperand& operand);

/// Throws Error unless the order of storage is one that the operand may have, and `codes` have its
/// shape.
void check_storage_order(const char* where, const QuantizedOperand& operand);

/// That the transform of `operand` fits (rows, k) elements, and has the factors or the memory for
/// bounds that it needs. Throws Error.
void check_transform(const QuantizedOperand& operand, std::int64_t rows, std::int64_t k);

/// That the transform of `space` fits `extent` elements, and has the factors that it needs. Throws
/// Error.
void check_space(const Space& space, std::int64_t extent);

/// A delayed spec and its state vector. Throws Error.
void check_delayed_state(const QuantSpec& spec, const TensorView& state);

/// Throws Error unless `view` is of type bf16 or f32 and of the given shape.
void check_matrix(const char* where, const char* name, const TensorView& view, std::int64_t rows,
                  std::int64_t cols);

}  // namespace fp8lab
