#include "kernels/pointwise/rmsnorm.hpp"

#include <cuda_pipeline_primitives.h>

#include <cstdint>

#include "kernels/plan/fusion.hpp"
#include "kernels/pointwise/column_sum.cuh"
#include "kernels/pointwise/rmsnorm_rows.cuh"
#include "kernels/pointwise/warp_rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

/// Returns `matrix` for groups that start at multiples of kGroup within a head.
template <class T>
Rows<T> groups_of(Rows<T> matrix, const NormHeads& heads) {
  matrix.wide = matrix.wide && (heads.count == 1 || heads.cols % kGroup == 0);
  return matrix;
}

/// One warp for each head. y may alias x: a whole head is summed before any of it is overwritten.
template <class X, class W, class Y>
__global__ void forward(std::int64_t count, NormHeads heads, Rows<X> x, Rows<W> weight,
                        float epsilon, Rows<Y> y, float* rstd) {
  const std::int64_t cols = heads.cols;
  for (std::int64_t head = first_row(); head < count; head += row_step()) {
    const std::int64_t row = heads.row(head), first = heads.first(head);
    const float squares = warp_tree_sum(cols, [&](std::int64_t c) {
      const float value = x.load(row, first + c);
      return value * value;
    });
    const float mean = squares / static_cast<float>(cols);
    const float r = 1.0f / __fsqrt_rn(mean + epsilon);
    if (lane_id() == 0) rstd[head] = numerics::canonical_nan(r);
    for_each_group_of_row(cols, [&](std::int64_t col, int count) {
      float values[kGroup], w[kGroup];
      x.load_group(row, first + col, count, values);
      weight.load_group(0, col, count, w);
      for (int i = 0; i < kGroup; ++i) values[i] = (values[i] * r) * w[i];
      y.store_group(row, first + col, count, values);
    });
  }
}

/// One warp for each head. dx may alias dy: a whole head is summed before any of it is overwritten.
template <class DY, class X, class W, class DX>
__global__ void backward(std::int64_t count, NormHeads heads, Rows<DY> dy, Rows<X> x,
                         Rows<W> weight, const float* rstd, Rows<DX> dx) {
  const std::int64_t cols = heads.cols;
  for (std::int64_t head = first_row(); head < count; head += row_step()) {
    const std::int64_t row = heads.row(head), first = heads.first(head);
    const float s = warp_tree_sum(cols, [&](std::int64_t c) {
      return (dy.load(row, first + c) * weight.load(0, c)) * x.load(row, first + c);
    });
    const float r = rstd[head];
    const float k = ((s * r) * r) / static_cast<float>(cols);
    for_each_group_of_row(cols, [&](std::int64_t col, int count) {
      float d[kGroup], values[kGroup], w[kGroup];
      dy.load_group(row, first + col, count, d);
      x.load_group(row, first + col, count, values);
      weight.load_group(0, col, count, w);
      for (int i = 0; i < kGroup; ++i) d[i] = r * ((d[i] * w[i]) - (values[i] * k));
      dx.store_group(row, first + col, count, d);
    });
  }
}

/// Terms of the weight gradient.
template <class DY, class X>
struct Normalised {
  struct Loaded {
    DY dy[kGroup];
    X x[kGroup];
  };
  NormHeads heads;
  Rows<DY> dy;
  Rows<X> x;
  const float* rstd;

  __device__ bool is_wide() const { return dy.wide && x.wide; }
  __device__ Loaded load(std::int64_t head, std::int64_t col, int count) const {
    const std::int64_t row = heads.row(head), at = heads.first(head) + col;
    Loaded loaded;
    dy.load_bits(row, at, count, loaded.dy);
    x.load_bits(row, at, count, loaded.x);
    return loaded;
  }
  __device__ void add(const Loaded& loaded, std::int64_t head, float (&sums)[kGroup]) const {
    const float r = rstd[head];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      sums[i] = sums[i] + widen(loaded.dy[i]) * (widen(loaded.x[i]) * r);
    }
  }
};

using Bf16 = std::uint16_t;

/// Computes one row with each block: y if kStores, rstd, and the sum if kAdds.
template <bool kAdds, bool kStores, int kThreads>
__global__ void __launch_bounds__(kThreads,
                                  kThreads == kMostRowThreads ? 1 : NormRows<Bf16, kAdds>::kBlocks)
    forward_of_rows(const __grid_constant__ NormRows<Bf16, kAdds> source, int cols) {
  const std::int64_t row = blockIdx.x;
  typename NormRows<Bf16, kAdds>::Loaded loaded[kHeldGroups];
#pragma unroll
  for (int h = 0; h < kHeldGroups; ++h) {
    loaded[h] = source.load(row, held_col(h), cols - held_col(h));
  }
  const float r = source.begin(row, cols, loaded);
  if constexpr (kStores) {
#pragma unroll
    for (int h = 0; h < kHeldGroups; ++h) {
      source.make(row, held_col(h), cols - held_col(h), r, loaded[h]);
    }
  }
}

template <bool kAdds, bool kStores>
void launch_forward_of_rows(Context& context, const NormRows<Bf16, kAdds>& source,
                            const TensorView& x) {
  const unsigned threads = held_row_threads(x.cols);
  const auto launch = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(x.rows), threads, source.shared_bytes(x.cols),
             context.stream()>>>(source, static_cast<int>(x.cols));
  };
  if (threads <= kFewRowThreads) {
    launch(forward_of_rows<kAdds, kStores, kFewRowThreads>);
  } else {
    launch(forward_of_rows<kAdds, kStores, kMostRowThreads>);
  }
  check_launch("rmsnorm_forward: rows");
}

// --- gradients of whole rows of bf16 -------------------------------------------------------------
//
// A block computes the kColumnSumBlock rows of one partial sum of the weight gradient, kRows at a
// time. A thread has the same four columns in every row:
//
//   dy, x of the next rows --> registers, in flight during all later steps
//   kAdds: their gradient  --> shared memory, in flight as long: a double buffer in which each
//                              thread copies and reads its own columns
//   dy, x of the rows      --> partial sums of the weight gradient, in registers
//                          --> (dy * weight) * x, to shared memory
//        barrier                a warp adds those of a row in the order of tree_sum: its k
//        barrier           --> dx, or round(gradient + round(dx))
//
// Dynamic shared memory: float4 products[kRows][cols / kQuad]; Quad added[2][kRows][kThreads].

constexpr int kQuad = 4;

struct Quad {
  uint2 words;

  __device__ void load(const Bf16* source) { words = *reinterpret_cast<const uint2*>(source); }
  __device__ void round(const float (&values)[kQuad]) {
    const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(values[0], values[1]),
                                     __floats2bfloat162_rn(values[2], values[3])};
    std::memcpy(&words, pairs, sizeof words);
  }
  __device__ void add(const Quad& other) {
    float values[kQuad], others[kQuad];
    widen_to(values);
    other.widen_to(others);
#pragma unroll
    for (int i = 0; i < kQuad; ++i) values[i] = values[i] + others[i];
    round(values);
  }
  __device__ void widen_to(float (&values)[kQuad]) const {
    const std::uint32_t pairs[2] = {words.x, words.y};
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      values[i] =
          numerics::bits_float(i % 2 != 0 ? pairs[i / 2] & 0xFFFF0000u : pairs[i / 2] << 16);
    }
  }
};

/// Rows for which one launch computes dx and the partial sums of the weight gradient.
struct RowGradients {
  std::int64_t rows;
  int cols;  ///< a multiple of kQuad, at most numerics::kSumChunk
  Rows<Bf16> dy, x;
  Rows<Bf16> result;  ///< kAdds: the gradient to which dx is added; else dx
  const float* rstd;
  float* partial;  ///< (blocks, cols), as in column_block_sums
};

/// The four columns of a thread, over the rows of a block.
struct Columns {
  const Bf16 *dy, *x;
  Bf16* result;
  std::int64_t dy_stride, x_stride, result_stride;

  __device__ Columns(const RowGradients& of, std::int64_t row, int col)
      : dy(of.dy.at(row, col)),
        x(of.x.at(row, col)),
        result(of.result.at(row, col)),
        dy_stride(of.dy.stride),
        x_stride(of.x.stride),
        result_stride(of.result.stride) {}
  /// Reads the next row of dy and x.
  __device__ void read(Quad& of_dy, Quad& of_x) {
    of_dy.load(dy);
    of_x.load(x);
    dy += dy_stride;
    x += x_stride;
  }
  /// Starts an asynchronous copy of the gradient `i` rows after the next row to write.
  __device__ void copy(int i, Quad& to) const {
    __pipeline_memcpy_async(&to, result + i * result_stride, sizeof(Quad));
  }
  /// Writes the next row.
  __device__ void write(const Quad& values) {
    *reinterpret_cast<uint2*>(result) = values.words;
    result += result_stride;
  }
};

/// Shared memory of a block.
template <int kRows>
struct RowMemory {
  float rstd[kColumnSumBlock], slopes[kRows];
};

/// Computes `count` rows, kRows at a time; kWhole: count is kColumnSumBlock. `sums`: this thread's
/// partial sums of the weight gradient, one for each of its columns. has_columns: false for
/// threads past the last column.
template <bool kAdds, int kRows, int kThreads, bool kWhole>
__device__ void take_rows(int cols, int count, bool has_columns, Columns columns,
                          const float (&w)[kQuad], RowMemory<kRows>& memory, float4* products,
                          float (&sums)[kQuad]) {
  static_assert(kColumnSumBlock % kRows == 0);
  const int quad = static_cast<int>(threadIdx.x), quads = cols / kQuad;
  Quad next_dy[kRows], next_x[kRows];
  Quad* const added = reinterpret_cast<Quad*>(products + kRows * quads) + quad;
  const auto slot = [&](int row, int i) -> Quad& {
    return added[(row / kRows % 2 * kRows + i) * kThreads];
  };
  const auto read = [&](int row, int ahead) {
    if (has_columns && row < count) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (!kWhole && row + i >= count) break;
        columns.read(next_dy[i], next_x[i]);
        if constexpr (kAdds) columns.copy(ahead + i, slot(row, i));
      }
    }
    if constexpr (kAdds) __pipeline_commit();
  };
  read(0, 0);
#pragma unroll 1
  for (int row = 0; row < count; row += kRows) {
    Quad dy[kRows], x[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) dy[i] = next_dy[i], x[i] = next_x[i];
    read(row + kRows, kRows);
    if (has_columns) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (!kWhole && row + i >= count) break;
        const float r = memory.rstd[row + i];
        float d[kQuad], values[kQuad], of_sum[kQuad];
        dy[i].widen_to(d);
        x[i].widen_to(values);
#pragma unroll
        for (int c = 0; c < kQuad; ++c) {
          sums[c] = sums[c] + d[c] * (values[c] * r);
          of_sum[c] = (d[c] * w[c]) * values[c];
        }
        products[i * quads + quad] = {of_sum[0], of_sum[1], of_sum[2], of_sum[3]};
      }
    }
    __syncthreads();
    for (int i = warp_id(); i < kRows && row + i < count; i += warp_count()) {
      const auto* const own = reinterpret_cast<const float*>(products + i * quads);
      const float s = warp_chunk_sum(0, cols, [own](std::int64_t c) { return own[c]; });
      const float r = memory.rstd[row + i];
      if (lane_id() == 0) memory.slopes[i] = ((s * r) * r) / static_cast<float>(cols);
    }
    __syncthreads();
    if constexpr (kAdds) __pipeline_wait_prior(1);
    if (has_columns) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (!kWhole && row + i >= count) break;
        const float r = memory.rstd[row + i], k = memory.slopes[i];
        float d[kQuad], values[kQuad];
        dy[i].widen_to(d);
        x[i].widen_to(values);
#pragma unroll
        for (int c = 0; c < kQuad; ++c) d[c] = r * ((d[c] * w[c]) - (values[c] * k));
        Quad result;
        result.round(d);
        if constexpr (kAdds) result.add(slot(row, i));
        columns.write(result);
      }
    }
  }
}

/// Without kAdds the result may alias dy: a thread overwrites only what it
/// alone reads, after reading.
template <bool kAdds, class W, int kRows, int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    backward_of_rows(const __grid_constant__ RowGradients of, Rows<W> weight) {
  extern __shared__ float4 products[];
  __shared__ RowMemory<kRows> memory;
  const std::int64_t first = std::int64_t{blockIdx.x} * kColumnSumBlock;
  const int count = static_cast<int>(
      of.rows - first < kColumnSumBlock ? of.rows - first : std::int64_t{kColumnSumBlock});
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    memory.rstd[i] = of.rstd[first + i];
  }
  const int col = static_cast<int>(threadIdx.x) * kQuad;
  const bool has_columns = col < of.cols;
  float w[kQuad], sums[kQuad] = {};
#pragma unroll
  for (int i = 0; i < kQuad; ++i) w[i] = has_columns ? weight.load(0, col + i) : 0.0f;
  __syncthreads();
  const Columns columns(of, first, col);
  if (count == kColumnSumBlock) {
    take_rows<kAdds, kRows, kThreads, true>(of.cols, count, has_columns, columns, w, memory,
                                            products, sums);
  } else {
    take_rows<kAdds, kRows, kThreads, false>(of.cols, count, has_columns, columns, w, memory,
                                             products, sums);
  }
  if (!has_columns) return;
  *reinterpret_cast<float4*>(of.partial + std::int64_t{blockIdx.x} * of.cols + col) = {
      sums[0], sums[1], sums[2], sums[3]};
}

template <bool kAdds, class W>
void launch_backward_of_rows(Context& context, const RowGradients& of, const Rows<W>& weight) {
  const unsigned threads =
      static_cast<unsigned>(of.cols / kQuad + kWarpSize - 1) / kWarpSize * kWarpSize;
  const auto launch = [&]<int kRows, int kThreads>() {
    constexpr auto kKernel = backward_of_rows<kAdds, W, kRows, kThreads>;
    const int bytes = kRows * of.cols * static_cast<int>(sizeof(float)) +
                      (kAdds ? 2 * kRows * kThreads * static_cast<int>(sizeof(Quad)) : 0);
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "rmsnorm_backward: shared memory");
    kKernel<<<static_cast<unsigned>(column_sum_blocks(of.rows)), threads,
              static_cast<unsigned>(bytes), context.stream()>>>(of, weight);
    check_launch("rmsnorm_backward: rows");
  };
  constexpr int kFew = 512, kMany = 1024;
  static_assert(kMany * kQuad == numerics::kSumChunk);
  if (threads <= kFew) {
    launch.template operator()<8, kFew>();
  } else {
    launch.template operator()<4, kMany>();
  }
}

template <bool kAdds>
void backward_by_rows(Context& context, const ops::RmsNormBackward& op, const TensorView& result) {
  const RowGradients of{op.x.rows,
                        static_cast<int>(op.x.cols),
                        rows_of<Bf16>(op.dy),
                        rows_of<Bf16>(op.x),
                        rows_of<Bf16>(result),
                        op.rstd.row<float>(0),
                        column_sum_workspace(context, op.x.rows, op.x.cols)};
  with_rows([&](const auto& weight) { launch_backward_of_rows<kAdds>(context, of, weight); },
            op.weight);
  add_block_sums(context, of.partial, column_sum_blocks(of.rows), op.dweight);
}

}  // namespace

void run(Context& context, const ops::RmsNormForward& op) {
  op.check();
  if (has_held_rows(op, DType::bf16)) {
    return launch_forward_of_rows<false, true>(context, NormRows<Bf16, false>(op), op.x);
  }
  if (op.x.rows == 0) return;
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t count = op.x.rows * heads.count;
  with_rows(
      [&]<class X, class W, class Y>(const Rows<X>& in, const Rows<W>& w, const Rows<Y>& out) {
        forward<<<warp_row_blocks(context, count), kWarpRowThreads, 0, context.stream()>>>(
            count, heads, groups_of(in, heads), w, op.epsilon, groups_of(out, heads),
            op.rstd.row<float>(0));
        check_launch("rmsnorm_forward");
      },
      op.x, op.weight, op.y);
}

void add_rmsnorm(Context& context, const ops::AddRmsNormForward& op) {
  op.check();
  launch_forward_of_rows<true, true>(context, NormRows<Bf16, true>(op), op.norm.x);
}

void find_rstd(Context& context, const ops::RmsNormForward& op) {
  op.check();
  launch_forward_of_rows<false, false>(context, NormRows<Bf16, false>(op), op.x);
}

void find_rstd(Context& context, const ops::AddRmsNormForward& op) {
  op.check();
  launch_forward_of_rows<true, false>(context, NormRows<Bf16, true>(op), op.norm.x);
}

void rmsnorm_backward_add(Context& context, const ops::RmsNormBackwardAdd& op) {
  op.check();
  backward_by_rows<true>(context, op.norm, op.gradient);
}

void run(Context& context, const ops::RmsNormBackward& op) {
  op.check();
  if (has_whole_rows(op, op.dx)) return backward_by_rows<false>(context, op, op.dx);
  const float* r = op.rstd.row<float>(0);
  const NormHeads heads = NormHeads::of(op.x, op.weight);
  const std::int64_t count = op.x.rows * heads.count;
  with_rows(
      [&]<class DY, class X, class W, class DX>(const Rows<DY>& d, const Rows<X>& in,
                                                const Rows<W>& w, const Rows<DX>& out) {
        // The gradient of op.weight comes first: it reads op.dy, which op.dx may overwrite.
        add_column_sums(context, count,
                        Normalised<DY, X>{heads, groups_of(d, heads), groups_of(in, heads), r},
                        op.dweight, "rmsnorm_backward: op.dweight");
        if (op.x.rows == 0) return;
        backward<<<warp_row_blocks(context, count), kWarpRowThreads, 0, context.stream()>>>(
            count, heads, groups_of(d, heads), groups_of(in, heads), w, r, groups_of(out, heads));
        check_launch("rmsnorm_backward");
      },
      op.dy, op.x, op.weight, op.dx);
}

}  // namespace fp8lab::cuda
