#include "kernels/gemm/carry.hpp"

#include <algorithm>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::FormatSpec;

constexpr int kThreads = 256;
constexpr int kBlocksOfMultiprocessor = 8;  ///< as many as fit

std::int64_t element_bytes(const FormatSpec& format) { return (format.bits() + 7) / 8; }

/// Number of lines of a carried copy, elements of a line, and distance of lines with padding.
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

/// Codes of the same format are copied: the most negative integer is never encoded.
FP8LAB_HD std::uint32_t carried_code(const FormatSpec& from, const FormatSpec& to,
                                     std::uint32_t code) {
  if (from == to) return code;
  return numerics::encode(to, numerics::decode_bits(from, code), numerics::Rounding::nearest,
                          numerics::Overflow::special);
}

/// Carries values: element i of line l is source[l * line_step + i * step].
template <class From, class To>
__global__ void carry_kernel(const From* source, std::int64_t line_step, std::int64_t step,
                             FormatSpec from, To* destination, CarriedShape shape, FormatSpec to) {
  for (std::int64_t line = blockIdx.y; line < shape.lines; line += gridDim.y) {
    for (std::int64_t i = blockIdx.x * std::int64_t{kThreads} + threadIdx.x; i < shape.length;
         i += std::int64_t{gridDim.x} * kThreads) {
      destination[line * shape.stride + i] =
          static_cast<To>(carried_code(from, to, source[line * line_step + i * step]));
    }
  }
}

/// Carries 8-bit codes whose lines are already in the right order, line_step bytes apart:
/// through a table of all codes, 16 bytes of the destination at a time. wide: the codes for 16
/// bytes can be loaded in one access.
template <class To>
__global__ void carry_codes_kernel(const std::uint8_t* source, std::int64_t line_step, bool wide,
                                   FormatSpec from, To* destination, CarriedShape shape,
                                   FormatSpec to) {
  constexpr int kTogether = sizeof(uint4) / sizeof(To);
  struct alignas(kTogether) Codes {
    std::uint8_t of[kTogether];
  };
  struct alignas(sizeof(uint4)) Carried {
    To of[kTogether];
  };
  static_assert(kThreads == 256);
  __shared__ To table[256];
  table[threadIdx.x] = static_cast<To>(carried_code(from, to, threadIdx.x));
  __syncthreads();
  for (std::int64_t line = blockIdx.y; line < shape.lines; line += gridDim.y) {
    for (std::int64_t i = (blockIdx.x * std::int64_t{kThreads} + threadIdx.x) * kTogether;
         i < shape.length; i += std::int64_t{gridDim.x} * kThreads * kTogether) {
      const std::uint8_t* const read = source + line * line_step + i;
      Codes codes{};
      if (wide && i + kTogether <= shape.length) {
        codes = *reinterpret_cast<const Codes*>(read);
      } else {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          if (i + j < shape.length) codes.of[j] = read[j];
        }
      }
      Carried carried;
#pragma unroll
      for (int j = 0; j < kTogether; ++j) carried.of[j] = table[codes.of[j]];
      // Lines end at multiples of 16 bytes; nobody reads the padding.
      *reinterpret_cast<Carried*>(destination + line * shape.stride + i) = carried;
    }
  }
}

/// Returns a grid in which each thread handles `together` elements of a line, with at most
/// `rows` blocks along the lines.
dim3 grid_of(const CarriedShape& shape, int together, std::int64_t rows) {
  const std::int64_t of_block = std::int64_t{kThreads} * together;
  return dim3(
      static_cast<unsigned>(std::min<std::int64_t>((shape.length + of_block - 1) / of_block, 64)),
      static_cast<unsigned>(std::min(shape.lines, rows)));
}

template <class From, class To>
void launch(Context& context, const QuantizedOperand& operand, const CarriedForm& form,
            To* destination) {
  const CarriedShape shape(operand, form);
  const auto* source = static_cast<const From*>(operand.codes.data);
  const FormatSpec from = stored_format(operand);
  const bool by_rows = form.order == StorageOrder::rows_contiguous;
  const std::int64_t line_step = by_rows ? operand.k_step() : operand.row_step();
  const std::int64_t step = by_rows ? operand.row_step() : operand.k_step();
  if constexpr (sizeof(From) == 1) {
    FP8LAB_ASSERT(step == 1);
    constexpr int kTogether = sizeof(uint4) / sizeof(To);
    const bool wide =
        reinterpret_cast<std::uintptr_t>(source) % kTogether == 0 && line_step % kTogether == 0;
    // One table serves many lines.
    const std::int64_t rows = std::int64_t{context.multiprocessors()} * kBlocksOfMultiprocessor;
    carry_codes_kernel<<<grid_of(shape, kTogether, rows), kThreads, 0, context.stream()>>>(
        source, line_step, wide, from, destination, shape, form.format);
  } else {
    carry_kernel<<<grid_of(shape, 1, 32768), kThreads, 0, context.stream()>>>(
        source, line_step, step, from, destination, shape, form.format);
  }
  check_launch("carry");
}

template <class From>
void launch(Context& context, const QuantizedOperand& operand, const CarriedForm& form,
            void* memory) {
  switch (element_bytes(form.format)) {
    case 1: return launch<From>(context, operand, form, static_cast<std::uint8_t*>(memory));
    case 2: return launch<From>(context, operand, form, static_cast<std::uint16_t*>(memory));
    default: return launch<From>(context, operand, form, static_cast<std::uint32_t*>(memory));
  }
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
