// What quantize and its relatives accept, and the errors for everything else.
#pragma once

#include "emulation/api/backend.hpp"

namespace fp8lab::cpu {

/// Shapes, types and spec of a quantization of `source`, see quantize. Throws Error.
void check_quantize(const TensorView& source, bool transpose, const TensorView& state,
                    const QuantizedOperand& operand);

/// The codes and scales of an operand to be read. `where` begins the message. Throws Error.
void check_operand(const char* where, const QuantizedOperand& operand);

/// An operand to be compared with the source that it is made from. Throws Error.
void check_statistics(const TensorView& source, bool transpose, const QuantizedOperand& operand);

/// That the transform of `operand` fits vectors of length k, and has the factors or the memory for
/// bounds that it needs. Throws Error.
void check_transform(const QuantizedOperand& operand, std::int64_t k);

/// Transform, types and shapes of Backend::smoothing_factors. Throws Error.
void check_smoothing_factors(const Transform& transform, const TensorView& a, bool transpose_a,
                             const TensorView& b, bool transpose_b, const TensorView& factors);

/// Operands and shapes of Backend::compensate. Throws Error.
void check_compensate(const QuantizedOperand& a, const TensorView& a_source, bool transpose_a,
                      const QuantizedOperand& b, const TensorView& b_source, bool transpose_b,
                      const TensorView& d);

/// A delayed spec and its state vector. Throws Error.
void check_delayed_state(const QuantSpec& spec, const TensorView& state);

/// Throws Error unless `view` is of type bf16 or f32 and of the given shape.
void check_matrix(const char* where, const char* name, const TensorView& view, std::int64_t rows,
                  std::int64_t cols);

}  // namespace fp8lab::cpu
