// Matrices of .npy files (matrix_files.hpp), or of Python, as GEMM operands.
#pragma once

#include <optional>
#include <string>

#include "emulation/backend.hpp"
#include "src/io/npy.hpp"
#include "src/model/operand.hpp"

namespace fp8lab::cli {

/// Copies `array` into memory of `backend`.
TensorView upload(Backend& backend, NpyArray& array);

/// The contents of a tensor, bf16 widened to f32.
NpyArray download(Backend& backend, const TensorView& view);

/// An operand of a product as a caller gave it.
struct MatrixOperand {
  QuantizedOperand operand;
  TensorView values;  ///< what was quantized; empty for codes
  std::string name;
};

/// An operand from `values`: codes (u8) with `scales`, or values that are quantized. The names
/// stand for the matrices in messages. Throws Error where scales are missing or superfluous, for
/// shapes and types that do not fit, and for codes and scales that `spec` cannot store.
MatrixOperand make_operand(Backend& backend, NpyArray& values, const std::string& name,
                           const std::optional<NpyArray>& scales, const std::string& scale_name,
                           const QuantSpec& spec, std::uint64_t seed);

/// ops::Product. Throws Error as it does, and where a compensated product has codes instead of
/// values.
void multiply(Backend& backend, const GemmSpec& spec, const MatrixOperand& a,
              const MatrixOperand& b, const TensorView& bias, bool accumulate, const TensorView& d);

}  // namespace fp8lab::cli
