#include "kernels/gemm/carry.hpp"

#include <algorithm>

#include "emulation/numerics/codec.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::FormatSpec;

constexpr int kThreads = 256;

std::int64_t element_bytes(const FormatSpec& format) { return (format.bits() + 7) / 8; }

/// Lines of a carried copy, and elements of one with its padding.
struct CarriedShape {
  std::int64_t lines, length, stride;

  CarriedShape(const QuantizedOperand& operand, const CarriedForm& form) {
    const bool by_rows = form.order == StorageOrder::rows_contiguous;
    const std::int64_t unit = 16 / element_bytes(form.format);
    lines = by_rows ? operand.k : operand.rows;
    length = by_rows ? operand.rows : operand.k;
    stride = (length + unit - 1) / unit * unit;
  }
};

FormatSpec stored_format(const QuantizedOperand& operand) {
  switch (operand.codes.dtype) {
    case DType::bf16: return numerics::kBF16;
    case DType::f32: return numerics::kFP32;
    default: return operand.spec.format;
  }
}

/// Element i of line l lies l * line_step + i * step elements behind `source`.
template <class From, class To>
__global__ void carry_kernel(const From* source, std::int64_t line_step, std::int64_t step,
                             FormatSpec from, To* destination, CarriedShape shape, FormatSpec to) {
  for (std::int64_t line = blockIdx.y; line < shape.lines; line += gridDim.y) {
    for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < shape.length;
         i += std::int64_t{gridDim.x} * kThreads) {
      const std::uint32_t bits = numerics::decode_bits(from, source[line * line_step + i * step]);
      destination[line * shape.stride + i] = static_cast<To>(
          numerics::encode(to, bits, numerics::Rounding::nearest, numerics::Overflow::special));
    }
  }
}

template <class From>
void launch(Context& context, const QuantizedOperand& operand, const CarriedForm& form,
            void* memory) {
  const CarriedShape shape(operand, form);
  const dim3 grid(
      static_cast<unsigned>(std::min<std::int64_t>((shape.length + kThreads - 1) / kThreads, 64)),
      static_cast<unsigned>(std::min<std::int64_t>(shape.lines, 32768)));
  const auto* source = static_cast<const From*>(operand.codes.data);
  const bool by_rows = form.order == StorageOrder::rows_contiguous;
  const std::int64_t line_step = by_rows ? operand.k_step() : operand.row_step();
  const std::int64_t step = by_rows ? operand.row_step() : operand.k_step();
  const FormatSpec from = stored_format(operand);
  const auto run = [&](auto* destination) {
    carry_kernel<<<grid, kThreads, 0, context.stream()>>>(source, line_step, step, from,
                                                          destination, shape, form.format);
  };
  switch (element_bytes(form.format)) {
    case 1: run(static_cast<std::uint8_t*>(memory)); break;
    case 2: run(static_cast<std::uint16_t*>(memory)); break;
    default: run(static_cast<std::uint32_t*>(memory)); break;
  }
  check_launch("carry");
}

}  // namespace

bool carried_already(const QuantizedOperand& operand, const CarriedForm& form) {
  if (stored_format(operand) != form.format || operand.order != form.order) return false;
  if (!form.aligned) return true;
  const auto address = reinterpret_cast<std::uintptr_t>(operand.codes.data);
  return address % 16 == 0 && operand.codes.row_stride * element_bytes(form.format) % 16 == 0;
}

std::size_t carried_bytes(const QuantizedOperand& operand, const CarriedForm& form) {
  const CarriedShape shape(operand, form);
  const std::int64_t bytes = shape.lines * shape.stride * element_bytes(form.format);
  return static_cast<std::size_t>((bytes + 255) / 256 * 256);
}

CarriedCodes carry(Context& context, const QuantizedOperand& operand, const CarriedForm& form,
                   void* memory) {
  if (operand.rows > 0 && operand.k > 0) {
    switch (size_of(operand.codes.dtype)) {
      case 1: launch<std::uint8_t>(context, operand, form, memory); break;
      case 2: launch<std::uint16_t>(context, operand, form, memory); break;
      default: launch<std::uint32_t>(context, operand, form, memory); break;
    }
  }
  return {memory, CarriedShape(operand, form).stride};
}

}  // namespace fp8lab::cuda
