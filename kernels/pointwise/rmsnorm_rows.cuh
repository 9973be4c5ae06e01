// RMS norms of rows that a block holds in registers (held_rows.cuh). Each element is read once; for
// the norm of a sum, the addition happens in the same pass.
//
//   x, or a and b  --> registers
//        |  kAdds: round(a + b), to memory and to the registers of a
//        +--> dynamic shared memory: a warp for each 4096 adds the squares in the order of tree_sum
//        |         barrier: rstd
//        v
//   (x * rstd) * weight
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/ops/pointwise/add_norm.hpp"
#include "kernels/pointwise/held_rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"

namespace fp8lab::cuda {

/// The norm of rows of T: of x or, if kAdds, of a sum. Also a source of row_kernel.
template <class T, bool kAdds>
struct NormRows {
  using Element = T;
  struct Loaded {
    Group<T> summands[kAdds ? 2 : 1];
    __device__ Group<T>& x() { return summands[0]; }
  };
  static constexpr int kBlocks = sizeof(T) == 2 ? 4 : 3;

  Rows<T> summands[kAdds ? 2 : 1];
  Rows<T> x;  ///< destination of the sum
  Rows<T> weight, y;
  float epsilon;
  float* rstd;

  explicit NormRows(const ops::RmsNormForward& norm)
      : x(rows_of<T>(norm.x)),
        weight(rows_of<T>(norm.weight)),
        y(rows_of<T>(norm.y)),
        epsilon(norm.epsilon),
        rstd(norm.rstd.row<float>(0)) {
    summands[0] = x;
  }
  explicit NormRows(const ops::AddRmsNormForward& op) : NormRows(op.norm) {
    summands[0] = rows_of<T>(op.a);
    summands[1] = rows_of<T>(op.b);
  }
  /// Returns the bytes of dynamic shared memory.
  static std::size_t shared_bytes(std::int64_t cols) {
    return static_cast<std::size_t>((cols + kGroup - 1) / kGroup * kGroup) * sizeof(T);
  }

  __device__ Loaded load(std::int64_t row, int col, int left) const {
    Loaded loaded;
#pragma unroll
    for (int i = 0; i < (kAdds ? 2 : 1); ++i) {
      loaded.summands[i] = load_group(summands[i], row, col, left);
    }
    return loaded;
  }
  /// Computes and writes the row's rstd; if kAdds, replaces the summands by x.
  __device__ float begin(std::int64_t row, int cols, Loaded (&loaded)[kHeldGroups]) const {
    extern __shared__ uint4 elements[];
    auto* const own = reinterpret_cast<T*>(elements);
#pragma unroll
    for (int h = 0; h < kHeldGroups; ++h) {
      const int col = held_col(h);
      if (col >= cols) continue;
      if constexpr (kAdds) add(row, col, cols - col, loaded[h]);
      std::memcpy(own + col, loaded[h].x().words, sizeof(Group<T>));
    }
    __syncthreads();
    const float squares = block_tree_sum(cols, [own](std::int64_t c) {
      const float value = widen(own[c]);
      return value * value;
    });
    const float mean = squares / static_cast<float>(cols);
    const float r = 1.0f / __fsqrt_rn(mean + epsilon);
    if (threadIdx.x == 0) rstd[row] = numerics::canonical_nan(r);
    return r;
  }
  /// Computes and writes a group of y; returns it with zeros after the first `left` elements.
  __device__ Group<T> make(std::int64_t row, int col, int left, float r, Loaded& loaded) const {
    T bits[kGroup] = {};
    if (left > 0) {
      const int count = min(left, kGroup);
      float values[kGroup];
      const Group<T> w = load_group(weight, 0, col, left);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) values[i] = (loaded.x().value(i) * r) * w.value(i);
      narrow(values, bits);
      if (left < kGroup) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) bits[i] = i < count ? bits[i] : T{};
      }
      y.store_bits(row, col, count, bits);
    }
    Group<T> made;
    made.set(bits);
    return made;
  }

 private:
  __device__ void add(std::int64_t row, int col, int left, Loaded& loaded) const {
    float values[kGroup];
    T bits[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      values[i] = loaded.summands[0].value(i) + loaded.summands[kAdds ? 1 : 0].value(i);
    }
    narrow(values, bits);
    x.store_bits(row, col, min(left, kGroup), bits);
    loaded.x().set(bits);
  }
};

}  // namespace fp8lab::cuda
