// GEMM operands from matrices of .npy files (matrix_files.hpp) or of callers of the C interface.
#pragma once

#include <optional>
#include <string>

#include "emulation/backend.hpp"
#include "src/io/tensors/npy.hpp"
#include "src/model/linear/operand.hpp"

namespace fp8lab::cli {

/// Copies a matrix of host memory into memory of `backend`.
TensorView upload(Backend& backend, const TensorView& matrix);

/// Returns the contents of a tensor, with bf16 widened to f32.
NpyArray read_back(Backend& backend, const TensorView& view);

/// An operand of a GEMM as given by the caller.
struct MatrixOperand {
  QuantizedOperand operand;
  TensorView values;  ///< values that were quantized; empty for codes
  std::string name;
};

/// Creates an operand from `values` in host memory: codes (u8) with `scales`, or values to
/// quantize. The names stand for the matrices in messages. Throws Error for missing or superfluous
/// scales, for shapes and types that do not fit, and for codes and scales that `spec` cannot
/// represent.
MatrixOperand make_operand(Backend& backend, const TensorView& values, const std::string& name,
                           const std::optional<NpyArray>& scales, const std::string& scale_name,
                           const QuantSpec& spec, std::uint64_t seed);

/// Runs ops::Product. Throws Error if it refuses the operands, and if a compensated product is
/// given codes instead of values.
void multiply(Backend& backend, const GemmSpec& spec, const MatrixOperand& a,
              const MatrixOperand& b, const TensorView& bias, bool accumulate, const TensorView& d);

}  // namespace fp8lab::cli
