// Rules for the QuantSpec of a tensor that the optimizer keeps from step to step: a moment, master
// weights, a gradient. Its elements in row-major order form one row; a tile is the tensor or a
// group of consecutive elements. Unlike an operand, a state may have a scale with up to 16 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Returns true for fp32 and bf16 without a scale: the values themselves, as tensors of that type.
inline bool is_plain_state(const QuantSpec& spec) {
  return !spec.has_scale() && (spec.format == numerics::kFP32 || spec.format == numerics::kBF16);
}

/// Returns the plain state of this type.
inline QuantSpec plain_state(DType dtype) {
  QuantSpec spec;
  spec.format = dtype == DType::bf16 ? numerics::kBF16 : numerics::kFP32;
  return spec;
}

/// Returns the bytes of a code: 1 for formats of at most 8 bits, else 2, the low one first.
inline std::int64_t state_code_bytes(const QuantSpec& spec) { return spec.is_quantized() ? 1 : 2; }

/// Returns the elements of a tile of a state of n elements.
inline std::int64_t state_tile(const QuantSpec& spec, std::int64_t n) {
  return spec.scale_tile().cols == 0 ? n : spec.scale_tile().cols;
}

/// Returns the number of tiles with stored numbers: 0 without a scale or with a static one.
std::int64_t stored_tiles(const QuantSpec& spec, std::int64_t n);

/// Returns the label of a state; unlike label() also "fp16/tensor/pow2/enc_floor".
std::string state_label(const QuantSpec& spec);

/// Returns a state with a scale and more than 8 bits as an operand of 8 bits with the same scale:
/// the same rows of an operand's table matter to both. Returns other states unchanged.
QuantSpec as_operand(const QuantSpec& spec);

/// Returns why a state cannot be stored by `spec`; empty if it can.
std::optional<ErrorFields> refuse_state(const QuantSpec& spec);

}  // namespace fp8lab
