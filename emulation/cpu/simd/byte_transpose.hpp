// Transposes a byte matrix in vector registers. For the SIMD sources only.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "emulation/numerics/host_device.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {

template <int kBytes>
struct ByteVector;
template <>
struct ByteVector<16> {
  using Type = std::uint8_t __attribute__((vector_size(16)));
};
template <>
struct ByteVector<32> {
  using Type = std::uint8_t __attribute__((vector_size(32)));
};
template <>
struct ByteVector<64> {
  using Type = std::uint8_t __attribute__((vector_size(64)));
};

/// Interleaves the lower (kHigh = 0) or upper halves of every 16-byte lane: a0 b0 a1 b1 ...
template <int kHigh, int kBytes, int... kIndex>
void interleave(const typename ByteVector<kBytes>::Type& a,
                const typename ByteVector<kBytes>::Type& b, typename ByteVector<kBytes>::Type& out,
                std::integer_sequence<int, kIndex...>) {
  out = __builtin_shufflevector(
      a, b, (kIndex / 16 * 16 + 8 * kHigh + kIndex % 16 / 2 + kIndex % 2 * kBytes)...);
}

/// Loads kBytes / 16 pieces of 16 bytes, `step` apart, side by side. Joins them in registers:
/// storing the pieces and loading them together would wait for the stores.
template <int kBytes, int... kIndex>
typename ByteVector<kBytes>::Type gather_lanes(const std::uint8_t* source, std::int64_t step,
                                               std::integer_sequence<int, kIndex...>) {
  if constexpr (kBytes == 16) {
    ByteVector<16>::Type lane;
    std::memcpy(&lane, source, sizeof lane);
    return lane;
  } else {
    using Half = std::make_integer_sequence<int, kBytes / 2>;
    const auto low = gather_lanes<kBytes / 2>(source, step, Half{});
    const auto high = gather_lanes<kBytes / 2>(source + kBytes / 32 * step, step, Half{});
    return __builtin_shufflevector(low, high, kIndex...);
  }
}

/// Transposes kRows x 16 bytes, kRows a multiple of 16. Lane l of vector i holds row 16 l + i.
/// Interleaving vectors i and i + 8 moves the top bit of the row index to the bottom of the
/// column index. Four rounds of it exchange row and column within each lane, so that vector i
/// holds column i.
template <int kRows>
void transpose_tile(const std::uint8_t* source, std::int64_t source_stride,
                    std::uint8_t* destination, std::int64_t destination_stride) {
  using Bytes = typename ByteVector<kRows>::Type;
  using Sequence = std::make_integer_sequence<int, kRows>;
  Bytes a[16], b[16];
  for (int i = 0; i < 16; ++i) {
    a[i] = gather_lanes<kRows>(source + i * source_stride, 16 * source_stride, Sequence{});
  }
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      interleave<0, kRows>(a[i], a[i + 8], b[2 * i], Sequence{});
      interleave<1, kRows>(a[i], a[i + 8], b[2 * i + 1], Sequence{});
    }
    for (int i = 0; i < 8; ++i) {
      interleave<0, kRows>(b[i], b[i + 8], a[2 * i], Sequence{});
      interleave<1, kRows>(b[i], b[i + 8], a[2 * i + 1], Sequence{});
    }
  }
  for (int i = 0; i < 16; ++i) std::memcpy(destination + i * destination_stride, &a[i], kRows);
}

/// Computes destination (cols, rows) = transpose of source (rows, cols), strides in bytes.
/// kRegister is the width of a vector register: 16, 32 or 64 bytes.
template <int kRegister>
void transpose_bytes(const std::uint8_t* source, std::int64_t source_stride, std::int64_t rows,
                     std::int64_t cols, std::uint8_t* destination,
                     std::int64_t destination_stride) {
  const std::int64_t whole_cols = cols - cols % 16;
  std::int64_t r = 0;
  for (; r + kRegister <= rows; r += kRegister) {
    for (std::int64_t c = 0; c < whole_cols; c += 16) {
      transpose_tile<kRegister>(source + r * source_stride + c, source_stride,
                                destination + c * destination_stride + r, destination_stride);
    }
  }
  for (; r + 16 <= rows; r += 16) {
    for (std::int64_t c = 0; c < whole_cols; c += 16) {
      transpose_tile<16>(source + r * source_stride + c, source_stride,
                         destination + c * destination_stride + r, destination_stride);
    }
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int64_t i = c < whole_cols ? r : 0; i < rows; ++i) {
      destination[c * destination_stride + i] = source[i * source_stride + c];
    }
  }
}

}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
