// Groups of consecutive elements, in the words in which they are loaded.
#pragma once

#include "kernels/pointwise/rows.cuh"

namespace fp8lab::cuda {

/// kGroup consecutive elements of a row, in storage format.
template <class T>
struct Group {
  static constexpr int kWords = kGroup * sizeof(T) / sizeof(std::uint32_t);
  std::uint32_t words[kWords];

  /// Precondition: `source` is on a 16-byte boundary.
  __device__ void load(const T* source) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      const uint4 part = *reinterpret_cast<const uint4*>(source + i * kGroup / kWords);
      words[i] = part.x, words[i + 1] = part.y, words[i + 2] = part.z, words[i + 3] = part.w;
    }
  }
  /// Loads at most `count` elements and pads with zeros.
  __device__ void load_some(const T* source, int count) {
    T values[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) values[i] = i < count ? source[i] : T{};
    set(values);
  }
  __device__ void set(const T (&values)[kGroup]) { std::memcpy(words, values, sizeof words); }
  __device__ float value(int i) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return numerics::bits_float(words[i]);
    } else {  // numerics::from_bf16
      return numerics::bits_float(i % 2 != 0 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16);
    }
  }
};

/// Loads a group of a row, with zeros after the first `left` elements.
template <class T>
__device__ Group<T> load_group(const Rows<T>& rows, std::int64_t row, int col, int left) {
  Group<T> group;
  if (rows.wide && left >= kGroup) {
    group.load(rows.at(row, col));
  } else {
    group.load_some(rows.at(row, col), left);
  }
  return group;
}

}  // namespace fp8lab::cuda
