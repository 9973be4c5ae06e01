// Transforms of operands before quantization, and their inverses.
#pragma once

#include <vector>

#include "emulation/ops/gemm/rotate_back.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/quantize/smoothing.hpp"

namespace fp8lab::reference {

/// An f32 matrix that owns its memory.
class FloatMatrix {
 public:
  FloatMatrix(std::int64_t rows, std::int64_t cols)
      : values_(static_cast<std::size_t>(rows * cols)), rows_(rows), cols_(cols) {}
  TensorView view() { return {values_.data(), DType::f32, rows_, cols_, cols_}; }

 private:
  std::vector<float> values_;
  std::int64_t rows_, cols_;
};

/// Returns `source` (R, C), bf16 or f32, transformed for `operand`: quantize the result as you
/// would quantize `source`. K lies along the columns, or with `transpose` down the rows.
///
/// Hadamard: K is split into blocks of Hadamard::block elements, each multiplied as
/// numerics::hadamard_multiply defines, with signs before or after it. With key = operand.key, a
/// drawn sign is minus if the low bit of numerics::random_bits(key.seed, key.step_number(),
/// key.rotation, 2, position along K) is set. Smoothing: element j of K is divided by
/// operand.channel_factors[j], or multiplied by it if the operand is the right one, with one
/// rounding each. Clamp: numerics::clamped within operand.clamp_bounds. A left transform does to
/// the rows what it would do to K.
///
/// NaN is canonical. Throws Error if the transform does not fit the operand, or if the operand
/// lacks its factors or bounds.
FloatMatrix transformed(const TensorView& source, bool transpose, const QuantizedOperand& operand);

/// As transformed(), for a tensor not yet moved into operand.source_space: first
/// transforms its rows as it would transform them along K, then, if the operand's own
/// transform is linear, applies that.
FloatMatrix transformed_whole(const TensorView& source, bool transpose,
                              const QuantizedOperand& operand);

/// Inverts the transforms: `values` (f32), in the layout of the source, become the untransformed
/// values, also if the source was itself transformed. Applies signs and transposed matrix in
/// reverse order, or the inverse one of division and product. Does not undo a clamp: its
/// residual is not in the operand.
void undo_transform(const TensorView& values, bool transpose, const QuantizedOperand& operand);

/// Returns D of the operation, rotated back and not yet rounded.
FloatMatrix rotated_back(const ops::RotateBack& op);

/// Implements ops::SmoothingFactors.
void smoothing_factors(const ops::SmoothingFactors& op);

}  // namespace fp8lab::reference
