// Quantizes one tensor as a GEMM operand, outside of a training step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "emulation/backend.hpp"

namespace fp8lab {

/// Allocates codes and scales for the spec, rows and k of `operand`.
void allocate_memory(Backend& backend, QuantizedOperand& operand);

/// Memory for `rows` vectors of length `k` quantized by `spec`. Throws Error if the backend refuses
/// the quantizer.
QuantizedOperand allocate_operand(Backend& backend, const QuantSpec& spec, std::int64_t rows,
                                  std::int64_t k);

/// The tensor behind the other operand of the GEMM, for a smoothing, which depends on both. Other
/// transforms do not read it.
struct Partner {
  TensorView values;
  bool transpose = false;  ///< its operand is the transposed tensor
  bool is_left = false;    ///< it is A of A B^T
};

/// Quantizes FP32 or BF16 values (rows, k), or their transpose, by `spec`. Throws Error for other
/// types, for delayed scaling, which needs the history of a run, and for a smoothing without its
/// partner.
QuantizedOperand quantize_values(Backend& backend, const TensorView& values, bool transpose,
                                 const QuantSpec& spec, std::uint64_t seed, const std::string& name,
                                 const std::optional<Partner>& partner = std::nullopt);

/// quantize_values into an operand that has its spec and memory.
void quantize_into(Backend& backend, const TensorView& values, bool transpose, std::uint64_t seed,
                   const std::string& name, const std::optional<Partner>& partner,
                   QuantizedOperand& operand);

}  // namespace fp8lab
