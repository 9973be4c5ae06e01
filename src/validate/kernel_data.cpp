#include "src/validate/kernel_data.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace fp8lab {
namespace {

constexpr std::int64_t kDistinct = 1
                                   << 18;  ///< elements drawn; larger tensors repeat them, shifted

HostTensor from_floats(DType dtype, std::int64_t rows, std::int64_t cols,
                       const std::vector<float>& drawn) {
  HostTensor tensor{dtype, rows, cols, {}, false, false};
  const auto count = static_cast<std::size_t>(rows * cols);
  tensor.data.resize(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    // Each repetition starts one element later, so that columns do not line up.
    const float value = drawn[(i + i / drawn.size()) % drawn.size()];
    if (dtype == DType::bf16) {
      const std::uint16_t bits = numerics::to_bf16(value);
      std::memcpy(tensor.data.data() + 2 * i, &bits, sizeof bits);
    } else {
      std::memcpy(tensor.data.data() + 4 * i, &value, sizeof value);
    }
  }
  return tensor;
}

}  // namespace

HostTensor KernelData::values(DType dtype, std::int64_t rows, std::int64_t cols, bool specials) {
  const std::int64_t height = std::max<std::int64_t>(1, std::min(rows, kDistinct / cols));
  return from_floats(dtype, rows, cols,
                     generator_.matrix(numerics::kE4M3, height, cols, 4, 32, specials));
}

HostTensor KernelData::ordinary(DType dtype, std::int64_t rows, std::int64_t cols, float size) {
  const std::int64_t count = std::max<std::int64_t>(1, std::min(rows * cols, kDistinct));
  std::vector<float> drawn = generator_.values(numerics::kE4M3, ValueKind::gaussian, count);
  for (float& value : drawn) value *= size;
  return from_floats(dtype, rows, cols, drawn);
}

HostTensor KernelData::integers(std::int64_t count, std::int64_t low, std::int64_t high) {
  HostTensor tensor{DType::i32, 1, count, {}, false, true};
  tensor.data.resize(static_cast<std::size_t>(count) * sizeof(std::int32_t));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::int32_t>(integer(low, high));
    std::memcpy(tensor.data.data() + 4 * i, &value, sizeof value);
  }
  return tensor;
}

HostTensor KernelData::output(DType dtype, std::int64_t rows, std::int64_t cols) {
  HostTensor tensor = dtype == DType::bf16 || dtype == DType::f32
                          ? ordinary(dtype, rows, cols)
                          : HostTensor{dtype, rows, cols, {}, false, false};
  tensor.data.resize(static_cast<std::size_t>(rows * cols) * size_of(dtype));
  tensor.output = true;
  return tensor;
}

MatrixShape matrix_shape(KernelData& data, int round) {
  switch (round % 4) {
    case 0: return {data.integer(1, 3), data.integer(1, 40)};
    case 1: return {data.integer(5, 70), data.integer(30, 700)};
    case 2: return {data.integer(2, 9), data.integer(4000, 9000)};
    default: return {data.integer(900, 2100), data.integer(60, 130) * 16};
  }
}

std::string describe(const MatrixShape& shape) {
  return fmt::format("({}, {})", shape.rows, shape.cols);
}

QuantSpec quantized(const numerics::FormatSpec& format, TileShape tile,
                    numerics::ScaleFormat scale) {
  QuantSpec spec;
  spec.format = format;
  spec.tile = tile;
  spec.scale.format = scale;
  spec.scale_source = ScaleSource::current;
  return spec;
}

QuantizedOperand operand_at(const QuantSpec& spec, std::int64_t rows, std::int64_t k,
                            const std::vector<TensorView>& t, std::size_t first) {
  QuantizedOperand operand;
  operand.spec = spec;
  operand.rows = rows;
  operand.k = k;
  operand.codes = t[first];
  if (spec.has_scale()) operand.scales = t[first + 1];
  return operand;
}

HostTensor scales_of(KernelData& data, const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
  if (!spec.has_scale()) return data.output(DType::f32, 1, 1);
  return data.output(DType::f32, spec.tile_rows(rows), spec.scale_cols(k));
}

}  // namespace fp8lab
