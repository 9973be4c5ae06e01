#include "kernels/gemm/carry.hpp"

#include <algorithm>

#include "emulation/numerics/codec.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::FormatSpec;

constexpr int kThreads = 256;

std::int64_t element_bytes(const FormatSpec& format) { return (format.bits() + 7) / 8; }

/// Elements of a carried row with its padding.
std::int64_t padded(std::int64_t k, const FormatSpec& format) {
  const std::int64_t unit = 16 / element_bytes(format);
  return (k + unit - 1) / unit * unit;
}

FormatSpec stored_format(const QuantizedOperand& operand) {
  switch (operand.codes.dtype) {
    case DType::bf16: return numerics::kBF16;
    case DType::f32: return numerics::kFP32;
    default: return operand.spec.format;
  }
}

template <class From, class To>
__global__ void carry_kernel(const From* source, std::int64_t source_stride, FormatSpec from,
                             To* destination, std::int64_t stride, FormatSpec to, std::int64_t rows,
                             std::int64_t k) {
  const std::int64_t row = blockIdx.y;
  for (std::int64_t r = row; r < rows; r += gridDim.y) {
    for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < k;
         i += std::int64_t{gridDim.x} * kThreads) {
      const std::uint32_t bits = numerics::decode_bits(from, source[r * source_stride + i]);
      destination[r * stride + i] = static_cast<To>(
          numerics::encode(to, bits, numerics::Rounding::nearest, numerics::Overflow::special));
    }
  }
}

template <class From>
void launch(Context& context, const QuantizedOperand& operand, const FormatSpec& to, void* memory,
            std::int64_t stride) {
  const dim3 grid(
      static_cast<unsigned>(std::min<std::int64_t>((operand.k + kThreads - 1) / kThreads, 64)),
      static_cast<unsigned>(std::min<std::int64_t>(operand.rows, 32768)));
  const auto* source = static_cast<const From*>(operand.codes.data);
  const FormatSpec from = stored_format(operand);
  const auto run = [&](auto* destination) {
    carry_kernel<<<grid, kThreads, 0, context.stream()>>>(
        source, operand.codes.row_stride, from, destination, stride, to, operand.rows, operand.k);
  };
  switch (element_bytes(to)) {
    case 1: run(static_cast<std::uint8_t*>(memory)); break;
    case 2: run(static_cast<std::uint16_t*>(memory)); break;
    default: run(static_cast<std::uint32_t*>(memory)); break;
  }
  check_launch("carry");
}

}  // namespace

bool carried_already(const QuantizedOperand& operand, const FormatSpec& format, bool aligned) {
  if (stored_format(operand) != format) return false;
  if (!aligned) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(operand.codes.data);
  return address % 16 == 0 && operand.codes.row_stride * element_bytes(format) % 16 == 0;
}

std::size_t carried_bytes(const QuantizedOperand& operand, const FormatSpec& format) {
  const std::int64_t bytes = operand.rows * padded(operand.k, format) * element_bytes(format);
  return static_cast<std::size_t>((bytes + 255) / 256 * 256);
}

CarriedCodes carry(Context& context, const QuantizedOperand& operand, const FormatSpec& format,
                   void* memory) {
  const std::int64_t stride = padded(operand.k, format);
  if (operand.rows > 0 && operand.k > 0) {
    switch (size_of(operand.codes.dtype)) {
      case 1: launch<std::uint8_t>(context, operand, format, memory, stride); break;
      case 2: launch<std::uint16_t>(context, operand, format, memory, stride); break;
      default: launch<std::uint32_t>(context, operand, format, memory, stride); break;
    }
  }
  return {memory, stride};
}

}  // namespace fp8lab::cuda
