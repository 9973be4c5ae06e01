// Exact sums in FP64 that prove their rounding (numerics/exact_extent.hpp).
//
//   codes of A (64 rows), B (64 rows) --decode--> FP64, 16 elements of K at a time, in shared
//   memory
//                                        |
//                                        +--> extents of the 64 + 64 rows of this chunk of K
//   each thread: 4 x 4 FP64 sums over the chunk
//      both ends of the error interval are one FP32 number: it is the sum of the chunk
//      else: the element is marked
//   after all of K, each warp: one marked element at a time, its lanes share K
//      twice the precision proves a sum, else ExactSum computes it
#include <cmath>
#include <limits>

#include "emulation/numerics/exact_extent.hpp"
#include "emulation/numerics/exact_sum.hpp"
#include "kernels/gemm/gemm_element.cuh"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kSide = 64;    // rows and columns of a block's part of D
constexpr int kDepth = 16;   // elements of K in shared memory
constexpr int kAcross = 16;  // threads beside each other; they own every 16th row and column
constexpr int kThreads = kAcross * kAcross;
constexpr int kOwn = kSide / kAcross;       // rows and columns of a thread
constexpr int kLoaders = kThreads / kSide;  // threads that load one row
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// What a thread has seen of its row in a chunk.
struct SeenValues {
  float top = 0.0f, bottom = std::numeric_limits<float>::infinity();
  double squares = 0.0;

  __device__ void add(float value) {
    const std::uint32_t magnitude = numerics::float_bits(value) & 0x7FFFFFFFu;
    const float low = numerics::lowest_bit(magnitude);
    value = numerics::bits_float(magnitude);
    top = value > top ? value : top;
    bottom = low > 0.0f && low < bottom ? low : bottom;
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  /// Returns the extent over the kLoaders lanes of a row.
  __device__ numerics::ExactExtent extent() {
    for (int span = 1; span < kLoaders; span *= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, span));
      bottom = fminf(bottom, __shfl_xor_sync(kAllLanes, bottom, span));
      squares += __shfl_xor_sync(kAllLanes, squares, span);
    }
    return numerics::exact_extent(top, bottom, squares);
  }
};

/// The extents of kSide rows.
struct Extents {
  int bits[kSide];
  double norms[kSide];

  __device__ void set(int row, const numerics::ExactExtent& extent) {
    bits[row] = extent.bits;
    norms[row] = extent.norm;
  }
  __device__ numerics::ExactExtent of(int row) const { return {bits[row], norms[row]}; }
};

struct Memory {
  double a[kDepth][kSide + 1], b[kDepth][kSide + 1];  // padded: fewer bank conflicts
  Extents of_a, of_b;
  std::uint16_t marked[kThreads];  // elements of each thread, one bit each
};

/// The chunks of K in the order of numerics::accumulate_element.
class Chunks {
 public:
  __device__ Chunks(const ScalarGemm& gemm)
      : k_(gemm.k),
        width_(gemm.element.range_width == 0 ? gemm.k : gemm.element.range_width),
        interval_(gemm.element.promote_interval == 0 ? width_ : gemm.element.promote_interval) {
    range_end_ = width_ < k_ ? width_ : k_;
    end_ = interval_ < range_end_ ? interval_ : range_end_;
  }
  __device__ bool is_done() const { return begin_ >= k_ && !is_first(); }
  __device__ bool is_first() const { return begin_ == 0 && !moved_; }
  __device__ bool ends_range() const { return end_ == range_end_; }
  __device__ std::int64_t begin() const { return begin_; }
  __device__ std::int64_t end() const { return end_; }
  __device__ void next() {
    moved_ = true;
    if (ends_range()) range_end_ = range_end_ + width_ < k_ ? range_end_ + width_ : k_;
    begin_ = end_;
    end_ = begin_ + interval_ < range_end_ ? begin_ + interval_ : range_end_;
  }

 private:
  std::int64_t k_, width_, interval_;
  std::int64_t begin_ = 0, end_ = 0, range_end_ = 0;
  bool moved_ = false;
};

/// One element's sum over the chunks that have been added.
struct Accumulator {
  float range = 0.0f, whole = 0.0f;
  bool has_whole = false;

  /// Adds the sum of a chunk as numerics::accumulate_range does.
  __device__ void add(const numerics::ElementGemm& spec, const Chunks& chunk, float part,
                      const float* sa, const float* sb) {
    const auto scale = [&](const float* scales, std::int64_t width) {
      return scales[width == 0 ? 0 : chunk.begin() / width];
    };
    if (spec.promote_interval == 0) {
      range = part;
    } else if (!numerics::scales_promotion(spec.order)) {
      range = range + part;
    } else {
      range = numerics::promote(spec.order, range, part, scale(sa, spec.scale_width_a),
                                scale(sb, spec.scale_width_b));
    }
    if (!chunk.ends_range()) return;
    whole = has_whole ? whole + range : range;
    has_whole = true;
    range = 0.0f;
  }
};

template <class Code>
__device__ float value_at(const void* codes, const numerics::FormatSpec& format,
                          std::int64_t index) {
  return numerics::decode(format, static_cast<const Code*>(codes)[index]);
}

/// Loads kDepth elements of K of one operand's rows into shared memory.
template <class Code>
__device__ void load(const void* codes, std::int64_t stride, const numerics::FormatSpec& format,
                     std::int64_t row, std::int64_t rows, std::int64_t begin, std::int64_t end,
                     double (&to)[kDepth][kSide + 1], SeenValues& seen) {
  const int own = static_cast<int>(threadIdx.x) / kLoaders;
  constexpr int kEach = kDepth / kLoaders;
  const int first = static_cast<int>(threadIdx.x) % kLoaders * kEach;
  for (int i = first; i < first + kEach; ++i) {
    float value = 0.0f;
    if (row + own < rows && begin + i < end) {
      value = value_at<Code>(codes, format, (row + own) * stride + begin + i);
      seen.add(value);
    }
    to[i][own] = static_cast<double>(value);
  }
}

/// Returns the sum of one element over a chunk. All lanes of a warp call it, and share K.
template <class Code>
__device__ float sum_by_warp(const ScalarGemm& gemm, std::int64_t row, std::int64_t column,
                             const Chunks& chunk) {
  const std::int64_t a = row * gemm.a_stride, b = column * gemm.b_stride;
  const auto left = [&](std::int64_t i) {
    return value_at<Code>(gemm.a, gemm.element.format_a, a + i);
  };
  const auto right = [&](std::int64_t i) {
    return value_at<Code>(gemm.b, gemm.element.format_b, b + i);
  };
  numerics::DoubledSum sum;
  double magnitudes = 0.0;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t i = chunk.begin() + lane; i < chunk.end(); i += 32) {
    const double product = static_cast<double>(left(i)) * static_cast<double>(right(i));
    sum.add(product);
    magnitudes += std::fabs(product);
  }
  for (int span = 16; span > 0; span /= 2) {
    sum.add(
        {__shfl_xor_sync(kAllLanes, sum.sum, span), __shfl_xor_sync(kAllLanes, sum.rest, span)});
    magnitudes += __shfl_xor_sync(kAllLanes, magnitudes, span);
  }
  // With infinities or NaN the FP64 sum is the exact one, in any order, and its rest is NaN.
  if (!std::isfinite(sum.sum)) return numerics::canonical_nan(static_cast<float>(sum.sum));
  const std::int64_t k = chunk.end() - chunk.begin();
  const double bound = 2.0 * static_cast<double>(k + 1) * 0x1p-53 * magnitudes * (1.0 + 0x1p-20);
  const double value = sum.sum + sum.rest, error = sum.error(k, bound);
  float result = static_cast<float>(value - error);
  const float most = static_cast<float>(value + error);
  // Lanes may have added the same numbers in another order; the first one decides.
  const bool proven = numerics::float_bits(result) == numerics::float_bits(most);
  if (!__shfl_sync(kAllLanes, proven ? 1 : 0, 0)) {
    if (lane == 0) {
      numerics::ExactSum exact;
      for (std::int64_t i = chunk.begin(); i < chunk.end(); ++i) {
        exact.add_product(left(i), right(i));
      }
      result = numerics::bits_float(exact.rounded());
    }
  }
  return __shfl_sync(kAllLanes, result, 0);
}

template <class Code>
__global__ void __launch_bounds__(kThreads) exact_kernel(const __grid_constant__ ScalarGemm gemm) {
  __shared__ Memory memory;
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kSide;
  const std::int64_t first_column = std::int64_t{blockIdx.x} * kSide;
  const int thread = static_cast<int>(threadIdx.x);
  const auto row_of = [](int owner, int i) { return owner / kAcross + i * kAcross; };
  const auto column_of = [](int owner, int j) { return owner % kAcross + j * kAcross; };
  const float one = 1.0f;
  const auto scales_a = [&](std::int64_t row) { return row_scales(gemm.scale_a, row, &one); };
  const auto scales_b = [&](std::int64_t row) { return row_scales(gemm.scale_b, row, &one); };

  Accumulator accumulators[kOwn][kOwn];
  unsigned marked = 0;
  for (Chunks chunk(gemm); !chunk.is_done(); chunk.next()) {
    double sums[kOwn][kOwn] = {};
    SeenValues seen_a, seen_b;
    for (std::int64_t begin = chunk.begin(); begin < chunk.end(); begin += kDepth) {
      load<Code>(gemm.a, gemm.a_stride, gemm.element.format_a, first_row, gemm.m, begin,
                 chunk.end(), memory.a, seen_a);
      load<Code>(gemm.b, gemm.b_stride, gemm.element.format_b, first_column, gemm.n, begin,
                 chunk.end(), memory.b, seen_b);
      __syncthreads();
#pragma unroll 4
      for (int k = 0; k < kDepth; ++k) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const double a = memory.a[k][row_of(thread, i)];
#pragma unroll
          for (int j = 0; j < kOwn; ++j) {
            sums[i][j] = fma(a, memory.b[k][column_of(thread, j)], sums[i][j]);
          }
        }
      }
      __syncthreads();
    }
    const numerics::ExactExtent a = seen_a.extent(), b = seen_b.extent();
    if (thread % kLoaders == 0) {
      memory.of_a.set(thread / kLoaders, a);
      memory.of_b.set(thread / kLoaders, b);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const std::int64_t row = first_row + row_of(thread, i);
        const std::int64_t column = first_column + column_of(thread, j);
        if (row >= gemm.m || column >= gemm.n) continue;
        const double sum = sums[i][j];
        const double error = numerics::exact_error_bound(memory.of_a.of(row_of(thread, i)),
                                                         memory.of_b.of(column_of(thread, j)),
                                                         chunk.end() - chunk.begin());
        const float least = static_cast<float>(sum - error);
        const bool proven =
            numerics::float_bits(least) == numerics::float_bits(static_cast<float>(sum + error));
        if (!proven && std::isfinite(sum)) marked |= 1u << (i * kOwn + j);
        accumulators[i][j].add(gemm.element, chunk,
                               numerics::canonical_nan(static_cast<float>(sum)), scales_a(row),
                               scales_b(column));
      }
    }
    __syncthreads();  // the extents are read before the next chunk's are written
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const std::int64_t row = first_row + row_of(thread, i);
      const std::int64_t column = first_column + column_of(thread, j);
      if (row >= gemm.m || column >= gemm.n || (marked >> (i * kOwn + j) & 1u) != 0) continue;
      store_element(gemm, row, column, accumulators[i][j].whole, *scales_a(row), *scales_b(column));
    }
  }

  memory.marked[thread] = static_cast<std::uint16_t>(marked);
  __syncthreads();
  for (int other = thread / 32; other < kThreads; other += kThreads / 32) {
    for (unsigned rest = memory.marked[other]; rest != 0; rest &= rest - 1u) {
      const int element = __ffs(static_cast<int>(rest)) - 1;
      const std::int64_t row = first_row + row_of(other, element / kOwn);
      const std::int64_t column = first_column + column_of(other, element % kOwn);
      Accumulator accumulator;
      for (Chunks chunk(gemm); !chunk.is_done(); chunk.next()) {
        accumulator.add(gemm.element, chunk, sum_by_warp<Code>(gemm, row, column, chunk),
                        scales_a(row), scales_b(column));
      }
      if (thread % 32 != 0) continue;
      store_element(gemm, row, column, accumulator.whole, *scales_a(row), *scales_b(column));
    }
  }
}

}  // namespace

void gemm_exact(Context& context, const ScalarGemm& gemm) {
  const dim3 grid(static_cast<unsigned>((gemm.n + kSide - 1) / kSide),
                  static_cast<unsigned>((gemm.m + kSide - 1) / kSide));
  switch (gemm.code_bytes) {
    case 1: exact_kernel<std::uint8_t><<<grid, kThreads, 0, context.stream()>>>(gemm); break;
    case 2: exact_kernel<std::uint16_t><<<grid, kThreads, 0, context.stream()>>>(gemm); break;
    default: exact_kernel<std::uint32_t><<<grid, kThreads, 0, context.stream()>>>(gemm); break;
  }
  check_launch("gemm_exact");
}

}  // namespace fp8lab::cuda
