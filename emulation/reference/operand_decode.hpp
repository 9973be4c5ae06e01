// Reads operands back as FP32 values, and stores operands as values.
#pragma once

#include <array>
#include <cstdint>

#include "emulation/ops/quantize/operand.hpp"

namespace fp8lab::reference {

/// Computes the values scale * decode(code) of an operand, one rectangle at a time. Keeps a
/// reference to the operand.
class OperandDecoder {
 public:
  explicit OperandDecoder(const QuantizedOperand& operand);

  /// Computes out[i * stride + j] = value of row `row` + i, element `col` + j of K: the
  /// FP32 product, rounded to nearest even, or without a scale the decoded or stored value.
  /// Does not canonicalise NaN.
  void block(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols, float* out,
             std::int64_t stride) const;

 private:
  void codebook_row(std::int64_t row, std::int64_t col, std::int64_t cols, float* out) const;
  void codes_row(std::int64_t row, std::int64_t col, std::int64_t cols, float* out) const;

  const QuantizedOperand& operand_;
  std::int64_t tile_height_, tile_width_;
  std::array<float, 256> values_{};  ///< value of each code
};

/// Dequantizes without undoing a transform: computes the values that a GEMM multiplies.
/// Precondition: the arguments have been checked.
void decode_operand(const QuantizedOperand& operand, bool transpose, const TensorView& destination);

/// Computes destination (C, R) = the transpose of source (R, C), both bf16 or both f32, bit by bit.
void copy_transposed(const TensorView& source, const TensorView& destination);

/// Implements ops::Quantize for formats of more than 8 bits. Precondition: the
/// arguments have been checked.
void cast_operand(const TensorView& source, bool transpose, const QuantizedOperand& operand);

}  // namespace fp8lab::reference
