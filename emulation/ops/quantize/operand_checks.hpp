// Checks of operands.
#pragma once

#include <string>

#include "emulation/ops/quantize/operand.hpp"

namespace fp8lab {

/// Says why an operation is refused; empty if it is supported.
struct Support {
  std::string reason;
  std::string_view fused_by{};  ///< a composite: its fused kernel; empty if its parts run in turn
  explicit operator bool() const { return reason.empty(); }
};

/// Returns whether tensors can be quantized by `spec`, on any backend.
Support supports_quantization(const QuantSpec& spec);

/// Checks the codes and scales of an operand. Throws Error whose message begins with `where`.
void check_operand(const char* where, const QuantizedOperand& operand);

/// As above, for an operand to be written: K contiguous.
void check_written_operand(const char* where, const QuantizedOperand& operand);

/// Throws Error unless the operand may have its storage order and `codes` have the matching shape.
void check_storage_order(const char* where, const QuantizedOperand& operand);

/// Throws Error unless the transform of `operand` fits (rows, k) elements and has the factors, or
/// the memory for bounds, that it needs.
void check_transform(const QuantizedOperand& operand, std::int64_t rows, std::int64_t k);

/// Throws Error unless the transform of `space` fits `extent` elements and has
/// the factors that it needs.
void check_space(const Space& space, std::int64_t extent);

/// Checks a delayed spec and its state vector. Throws Error.
void check_delayed_state(const QuantSpec& spec, const TensorView& state);

/// Throws Error unless `view` is bf16 or f32 and has the given shape.
void check_matrix(const char* where, const char* name, const TensorView& view, std::int64_t rows,
                  std::int64_t cols);

}  // namespace fp8lab
