// Groups of eight elements in storage order, the transpose of 8 x 8 elements, and their hash terms.
//
//   line: a row of a tensor as it is stored    the transpose takes a part of 8 lines x 8 elements,
//   a b c d e f g h   element 0 .. 7           kTurned lines at a time, and packs the elements m of
//   i j k l m n o p                            those lines into one 64-bit word for each m:
//   ...                                        8 lines of bytes, 4 of bf16, 2 of f32
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/operand_hash.hpp"
#include "kernels/pointwise/rows.cuh"

namespace fp8lab::cuda {

__device__ inline std::uint32_t bits_of(int code) { return static_cast<std::uint32_t>(code); }
__device__ inline std::uint32_t bits_of(float value) { return numerics::float_bits(value); }

/// Eight consecutive elements; T is std::uint8_t, std::uint16_t or float.
template <class T>
struct ElementWords {
  static constexpr int kWords = kGroup * sizeof(T) / sizeof(std::uint32_t);
  static constexpr int kHashWords = kWords / 2;
  std::uint32_t words[kWords];

  /// The group with these eight bytes.
  __device__ static ElementWords of(std::uint64_t bytes) {
    static_assert(kWords == 2);
    return {{static_cast<std::uint32_t>(bytes), static_cast<std::uint32_t>(bytes >> 32)}};
  }
  /// Returns the hash word with elements 8 i / kHashWords and following.
  __device__ std::uint64_t hash_word(int i) const {
    return words[2 * i] | static_cast<std::uint64_t>(words[2 * i + 1]) << 32;
  }
};

/// A tensor as lines in storage order.
template <class T>
struct Lines {
  const T* data;
  std::int64_t stride;
  bool wide;  ///< aligned: groups at multiples of eight elements can be loaded in one access

  __device__ const T* at(std::int64_t line, std::int64_t element) const {
    return data + line * stride + element;
  }
  /// Loads eight elements. Precondition: lines are wide, and `from` is at a multiple of
  /// eight elements in its line.
  __device__ static ElementWords<T> load_whole(const T* from) {
    using Vector = std::conditional_t<sizeof(T) == 1, uint2, uint4>;
    ElementWords<T> group;
    Vector vectors[sizeof group / sizeof(Vector)];
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof group / sizeof(Vector)); ++i) {
      vectors[i] = __ldg(reinterpret_cast<const Vector*>(from) + i);
    }
    std::memcpy(&group, vectors, sizeof group);
    return group;
  }
  /// Loads `count` elements, 8 at most, from a multiple of eight in a line on, and pads with zeros.
  __device__ ElementWords<T> load(const T* from, int count) const {
    if (wide && count >= kGroup) return load_whole(from);
    constexpr int kElements = sizeof(std::uint32_t) / sizeof(T);  // elements in a word
    ElementWords<T> group;
#pragma unroll
    for (int i = 0; i < ElementWords<T>::kWords; ++i) {
      group.words[i] = 0;
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        if (i * kElements + j >= count) continue;
        group.words[i] |= bits_of(+__ldg(from + i * kElements + j)) << 8 * sizeof(T) * j;
      }
    }
    return group;
  }
};

/// Precondition: T is the storage type of the view.
template <class T>
Lines<T> lines_of(const TensorView& view) {
  constexpr std::size_t kBytes = std::min(sizeof(uint4), kGroup * sizeof(T));
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const auto line_bytes = static_cast<std::uintptr_t>(view.row_stride) * sizeof(T);
  const bool aligned_lines = view.rows <= 1 || line_bytes % kBytes == 0;
  return {static_cast<const T*>(view.data), view.row_stride,
          address % kBytes == 0 && aligned_lines};
}

/// Number of lines whose elements one 64-bit word packs in the transpose.
template <class T>
inline constexpr int kTurned = static_cast<int>(sizeof(std::uint64_t) / sizeof(T));

/// Transposes a 4 x 4 matrix of bytes.
__device__ inline void turn(std::uint32_t (&words)[4]) {
  const std::uint32_t low_first = __byte_perm(words[0], words[1], 0x5140);
  const std::uint32_t high_first = __byte_perm(words[0], words[1], 0x7362);
  const std::uint32_t low_last = __byte_perm(words[2], words[3], 0x5140);
  const std::uint32_t high_last = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low_first, low_last, 0x5410);
  words[1] = __byte_perm(low_first, low_last, 0x7632);
  words[2] = __byte_perm(high_first, high_last, 0x5410);
  words[3] = __byte_perm(high_first, high_last, 0x7632);
}

/// Transposes: turned[m] gets the elements m of the lines, the first line in the low bits.
template <class T>
__device__ __forceinline__ void turn(const ElementWords<T> (&lines)[kTurned<T>],
                                     std::uint64_t (&turned)[kGroup]) {
  std::uint32_t halves[kGroup][2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const ElementWords<T>* part = lines + half * (kTurned<T> / 2);
    if constexpr (sizeof(T) == 1) {
#pragma unroll
      for (int m = 0; m < kGroup; m += 4) {
        std::uint32_t words[4] = {part[0].words[m / 4], part[1].words[m / 4], part[2].words[m / 4],
                                  part[3].words[m / 4]};
        turn(words);
        for (int i = 0; i < 4; ++i) halves[m + i][half] = words[i];
      }
    } else {
#pragma unroll
      for (int m = 0; m < kGroup; ++m) {
        halves[m][half] = sizeof(T) == 4
                              ? part[0].words[m]
                              : __byte_perm(part[0].words[m / 2], part[sizeof(T) == 2].words[m / 2],
                                            m % 2 == 0 ? 0x5410 : 0x7632);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kGroup; ++m) {
    turned[m] = halves[m][0] | static_cast<std::uint64_t>(halves[m][1]) << 32;
  }
}

/// Returns the hash term of word `index` of an operand's codes.
__device__ inline std::uint64_t hash_of_codes(std::int64_t index, std::uint64_t word) {
  return numerics::hash_term(numerics::HashedPart::codes, static_cast<std::uint64_t>(index), word);
}

}  // namespace fp8lab::cuda
