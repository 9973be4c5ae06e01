// Transforms of operands: what is quantized, and the way back.
#pragma once

#include <vector>

#include "emulation/ops/operand.hpp"
#include "emulation/ops/rotate_back.hpp"
#include "emulation/ops/smoothing.hpp"

namespace fp8lab::reference {

/// An f32 matrix with its memory.
class FloatMatrix {
 public:
  FloatMatrix(std::int64_t rows, std::int64_t cols)
      : values_(static_cast<std::size_t>(rows * cols)), rows_(rows), cols_(cols) {}
  TensorView view() { return {values_.data(), DType::f32, rows_, cols_, cols_}; }

 private:
  std::vector<float> values_;
  std::int64_t rows_, cols_;
};

/// `source` (R, C), bf16 or f32, by the transform of `operand`, so that the operand is quantized
/// from the result as it would be from `source`. K lies along the columns, or with `transpose` down
/// the rows.
///
/// Hadamard: K is cut into blocks of transform.block elements, each multiplied as
/// numerics::hadamard_multiply writes down, with signs before or after it. With key = operand.key,
/// a drawn sign is minus where the low bit of numerics::random_bits(key.seed, key.step_number(),
/// key.rotation, 2, position along K) is set. Smoothing: element j of K is divided by
/// operand.channel_factors[j], or multiplied by it if the operand is the right one, one rounding
/// each. Clamp: numerics::clamped within operand.clamp_bounds. A left transform does to the rows
/// what it would do to K.
///
/// NaN is canonical. Throws Error when the transform does not fit the operand or lacks its factors
/// or bounds.
FloatMatrix transformed(const TensorView& source, bool transpose, const QuantizedOperand& operand);

/// The same of the tensor before it was brought into operand.source_space: first its rows as they
/// would be transformed along K, then, if the operand's own transform is linear, that.
FloatMatrix transformed_whole(const TensorView& source, bool transpose,
                              const QuantizedOperand& operand);

/// The way back: `values` (f32), laid out as the source, become the untransformed values, also
/// where the source was not; signs and transposed matrix in reverse order, or the other one of
/// division and product. A clamp is not undone: what it took away is not in the operand.
void undo_transform(const TensorView& values, bool transpose, const QuantizedOperand& operand);

/// D of the operation, rotated back and not yet rounded.
FloatMatrix rotated_back(const ops::RotateBack& op);

/// What the operation says.
void smoothing_factors(const ops::SmoothingFactors& op);

}  // namespace fp8lab::reference
