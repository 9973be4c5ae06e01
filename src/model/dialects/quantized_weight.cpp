#include "src/model/dialects/quantized_weight.hpp"

#include <span>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/scaling.hpp"

namespace fp8lab {
namespace {

TensorBytes packed(const TensorBytes& codes) {
  TensorBytes bytes(codes.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = (codes[2 * i] & std::byte{15}) | (codes[2 * i + 1] << 4);
  }
  return bytes;
}

TensorBytes encoded(numerics::FormatSpec format, const std::vector<float>& values) {
  TensorBytes bytes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    bytes[i] = static_cast<std::byte>(numerics::encode(format, numerics::float_bits(values[i])));
  }
  return bytes;
}

TensorBytes as_f32(std::span<const float> values) {
  TensorBytes bytes(values.size_bytes());
  encode_elements(StoredType::f32, values, bytes);
  return bytes;
}

/// Repeats the scales of tiles of several rows for each row, where the layout has them by row.
std::vector<float> by_rows(const QuantizedOperand& operand, const WeightLayout& layout,
                           std::vector<float> scales) {
  const std::int64_t height = operand.spec.scale_tile().rows;
  if (layout.tile.rows != 1 || height <= 1) return scales;
  const auto cols = static_cast<std::size_t>(operand.scales.cols);
  std::vector<float> repeated;
  repeated.reserve(static_cast<std::size_t>(operand.rows) * cols);
  for (std::int64_t row = 0; row < operand.rows; ++row) {
    const auto first = scales.begin() + row / height * operand.scales.cols;
    repeated.insert(repeated.end(), first, first + operand.scales.cols);
  }
  return repeated;
}

/// Of two levels a tile's scale is RN(s * RN(1/S)): s is the E4M3 number nearest to it times S.
void write_two_levels(const QuantizedOperand& operand, const WeightLayout& layout, float amax,
                      std::vector<float>& scales, QuantizedBytes& bytes) {
  const float factor = numerics::nv_tensor_factor(operand.spec.scale, operand.spec.format, amax);
  const float decode = 1.0f / factor;
  for (float& scale : scales) {
    const std::uint32_t code =
        numerics::encode(numerics::kE4M3, numerics::float_bits(scale * factor));
    const float stored = numerics::decode(numerics::kE4M3, code);
    FP8LAB_ASSERT(stored * decode == scale);
    scale = stored;
  }
  bytes.scales = encoded(numerics::kE4M3, scales);
  bytes.global = as_f32(std::span(layout.global_divides() ? &factor : &decode, 1));
}

}  // namespace

QuantizedBytes quantized_bytes(Backend& backend, const QuantizedOperand& operand,
                               const WeightLayout& layout, float amax) {
  QuantizedBytes bytes;
  TensorBytes codes(static_cast<std::size_t>(operand.rows * operand.k));
  backend.download(codes.data(), operand.codes);
  bytes.codes = layout.is_packed() ? packed(codes) : std::move(codes);
  std::vector<float> scales = {1.0f};  // codes without a scale are the values
  if (!operand.scales.empty()) {
    scales.resize(static_cast<std::size_t>(operand.scales.rows * operand.scales.cols));
    backend.download(scales.data(), operand.scales);
    scales = by_rows(operand, layout, std::move(scales));
  }
  if (layout.has_two_levels()) {
    write_two_levels(operand, layout, amax, scales, bytes);
  } else {
    bytes.scales = layout.has_e8m0_scales() ? encoded(numerics::kE8M0, scales) : as_f32(scales);
  }
  return bytes;
}

}  // namespace fp8lab
