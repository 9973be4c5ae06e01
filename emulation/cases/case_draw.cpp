#include "emulation/cases/case_draw.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace fp8lab {
namespace {

constexpr std::int64_t kDistinct = std::int64_t{1} << 18;  ///< elements drawn before they repeat

HostTensor from_floats(DType dtype, std::int64_t rows, std::int64_t cols,
                       const std::vector<float>& drawn) {
  HostTensor tensor{dtype, rows, cols, {}, false, false};
  const auto count = static_cast<std::size_t>(rows * cols);
  tensor.data.resize(count * size_of(dtype));
  std::size_t next = 0, used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = drawn[next];
    if (++next == drawn.size()) next = 0;
    // Each repetition starts one element later, so that columns do not line up.
    if (++used == drawn.size()) {
      used = 0;
      if (++next == drawn.size()) next = 0;
    }
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

std::string describe(const MatrixShape& shape) {
  return fmt::format("({}, {})", shape.rows, shape.cols);
}

HostTensor magnitudes(HostTensor tensor) {
  const std::size_t size = size_of(tensor.dtype);
  for (std::size_t i = size - 1; i < tensor.data.size(); i += size) {
    tensor.data[i] &= std::byte{0x7F};
  }
  return tensor;
}

HostTensor zeroed(HostTensor tensor) {
  std::fill(tensor.data.begin(), tensor.data.end(), std::byte{0});
  return tensor;
}

MatrixShape CaseDraw::shape() {
  // Aligned rows take other paths through kernels than odd ones.
  const auto cols = [this](std::int64_t least, std::int64_t most) {
    const std::int64_t drawn = integer(least, most);
    return one_in(2) ? (drawn + 15) / 16 * 16 : drawn;
  };
  switch (round_ % 4) {
    case 0: return {integer(1, 3), integer(1, 40)};
    case 1: return {integer(5, 70), cols(30, 700)};
    case 2: return {integer(2, 9), cols(4000, 9000)};
    default: return {integer(900, 2100), integer(60, 130) * 16};
  }
}

HostTensor CaseDraw::values(DType dtype, std::int64_t rows, std::int64_t cols, bool specials) {
  const std::int64_t height = std::max<std::int64_t>(1, std::min(rows, kDistinct / cols));
  return from_floats(dtype, rows, cols,
                     generator_.matrix(numerics::kE4M3, height, cols, 4, 32, specials));
}

HostTensor CaseDraw::ordinary(DType dtype, std::int64_t rows, std::int64_t cols, float size) {
  const std::int64_t count = std::max<std::int64_t>(1, std::min(rows * cols, kDistinct));
  std::vector<float> drawn = generator_.values(numerics::kE4M3, ValueKind::gaussian, count);
  for (float& value : drawn) value *= size;
  return from_floats(dtype, rows, cols, drawn);
}

HostTensor CaseDraw::integers(std::int64_t count, std::int64_t low, std::int64_t high) {
  HostTensor tensor{DType::i32, 1, count, {}, false, true};
  tensor.data.resize(static_cast<std::size_t>(count) * sizeof(std::int32_t));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::int32_t>(integer(low, high));
    std::memcpy(tensor.data.data() + 4 * i, &value, sizeof value);
  }
  return tensor;
}

HostTensor CaseDraw::bytes(std::int64_t rows, std::int64_t cols, int bits) {
  HostTensor tensor{DType::u8, rows, cols, {}, false, false};
  tensor.data.resize(static_cast<std::size_t>(rows * cols));
  std::uint32_t drawn = 0;
  for (std::size_t i = 0; i < tensor.data.size(); ++i) {
    drawn = i % 4 == 0 ? word() : drawn >> 8;
    tensor.data[i] = static_cast<std::byte>(drawn & ((1u << bits) - 1u));
  }
  return tensor;
}

HostTensor CaseDraw::output(DType dtype, std::int64_t rows, std::int64_t cols) {
  HostTensor tensor = dtype == DType::bf16 || dtype == DType::f32
                          ? ordinary(dtype, rows, cols)
                          : HostTensor{dtype, rows, cols, {}, false, false};
  tensor.data.resize(static_cast<std::size_t>(rows * cols) * size_of(dtype));
  tensor.output = true;
  return tensor;
}

HostTensor CaseDraw::step_scalars() {
  HostTensor tensor = updated(flat(magnitudes(ordinary(DType::f32, 1, StepScalar::kCount))));
  auto* value = reinterpret_cast<float*>(tensor.data.data());
  value[StepScalar::kBeta1Power] = value[StepScalar::kBeta2Power] = 0.5f;
  return tensor;
}

}  // namespace fp8lab
