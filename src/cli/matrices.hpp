// Matrices of .npy files, or of Python, as GEMM operands.
#pragma once

#include <optional>
#include <string>

#include "emulation/api/backend.hpp"
#include "src/io/npy.hpp"

namespace fp8lab::cli {

/// A matrix of a .npy file with at least one element. Throws Error naming the file.
NpyArray read_matrix(const std::string& file);

/// Copies `array` into memory of `backend`.
TensorView upload(Backend& backend, NpyArray& array);

/// Memory for `rows` vectors of length `k` quantized by `spec`.
QuantizedOperand allocate_operand(Backend& backend, const QuantSpec& spec, std::int64_t rows,
                                  std::int64_t k);

/// The contents of a tensor, bf16 widened to f32.
NpyArray download(Backend& backend, const TensorView& view);

/// The tensor behind the other operand of a product, for transforms that look at both.
struct Partner {
  TensorView values;
  bool transpose = false;  ///< its operand is the transposed tensor
  bool is_left = false;    ///< it is A of A B^T
};

/// Quantizes FP32 or BF16 values (rows, k), or their transpose, by `spec`. Throws Error for other
/// types, for delayed scaling, which needs the history of a run, and for a smoothing without its
/// partner.
QuantizedOperand quantize_values(Backend& backend, const TensorView& values, bool transpose,
                                 const QuantSpec& spec, std::uint64_t seed, const std::string& file,
                                 const std::optional<Partner>& partner = std::nullopt);

/// quantize_values into an operand with its spec and memory.
void quantize_into(Backend& backend, const TensorView& values, bool transpose, std::uint64_t seed,
                   const std::string& file, const std::optional<Partner>& partner,
                   QuantizedOperand& operand);

/// An operand of a product as a caller gave it.
struct MatrixOperand {
  QuantizedOperand operand;
  TensorView values;  ///< what was quantized; empty for codes
  std::string name;
};

/// An operand from `values`: codes (u8) with `scales`, or values that are quantized. The names
/// stand for the matrices in messages. Throws Error where scales are missing or superfluous, and
/// for shapes and types that do not fit.
MatrixOperand make_operand(Backend& backend, NpyArray& values, const std::string& name,
                           const std::optional<NpyArray>& scales, const std::string& scale_name,
                           const QuantSpec& spec, std::uint64_t seed);

/// make_operand of `file`: codes (u8) with the scales of `scale_file`, or values that are
/// quantized.
MatrixOperand read_operand(Backend& backend, const std::string& file,
                           const std::optional<std::string>& scale_file, const QuantSpec& spec,
                           std::uint64_t seed);

/// Backend::gemm, and Backend::compensate where a clamp asks for it. Throws Error as they do, and
/// where a compensated product has codes instead of values.
void multiply(Backend& backend, const GemmSpec& spec, const MatrixOperand& a,
              const MatrixOperand& b, const TensorView& bias, bool accumulate, const TensorView& d);

}  // namespace fp8lab::cli
