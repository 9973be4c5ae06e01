// Multiplication by Hadamard matrices. Blocks whose size is a power of two stay in registers if the
// layout allows it; all others go through shared memory.
//
//   along rows, 8 to 256        a thread holds 8 neighbours: spans 1, 2, 4 inside it, 8 to 128 by
//                               shuffles between lanes, since the groups of a block are neighbours
//   down columns, 8 to 64       a thread holds the block's elements of two columns
//   others                      rotate_kernel: elements to shared memory;  barrier;  the core,
//                               into a second copy;  barrier;  a span;  barrier;  ...
//
// All variants add and subtract in the order of numerics::hadamard_multiply.
#include "kernels/transform/rotate.hpp"

#include <algorithm>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/numerics/hadamard.hpp"
#include "emulation/numerics/philox.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMostShared = 227 << 10;  ///< bytes of a block
constexpr std::size_t kUsualShared = 64 << 10;  ///< bound for additional vectors side by side
constexpr int kWidestStrip = 32;                ///< columns that are transformed side by side
constexpr std::int64_t kFewElements = 2048;     ///< of a row, in one block

/// The diagonal matrix of signs.
struct Signs {
  SignSource source;
  int length;  ///< length of the pattern
  std::uint64_t pattern[4];
  RandomKey key;

  __device__ float at(std::int64_t position) const {
    bool negative = false;
    if (source == SignSource::fixed) {
      const auto i = static_cast<int>(position % length);
      negative = (pattern[i / 64] >> (i % 64) & 1u) != 0;
    } else if (source == SignSource::drawn) {
      negative = (numerics::random_bits(key.seed, key.step_number(), key.rotation, 2,
                                        static_cast<std::uint64_t>(position)) &
                  1u) != 0;
    }
    return negative ? -1.0f : 1.0f;
  }
  /// Computes the signs of a group. Precondition: `first` is a multiple of kGroup.
  __device__ void of_group(std::int64_t first, float (&signs)[kGroup]) const {
    if (source != SignSource::drawn) {
      for (int i = 0; i < kGroup; ++i) signs[i] = at(first + i);
      return;
    }
#pragma unroll
    for (int i = 0; i < kGroup; i += 4) {
      const numerics::PhiloxCounter block = numerics::random_block(
          key.seed, key.step_number(), key.rotation, 2, static_cast<std::uint64_t>(first + i) / 4);
#pragma unroll
      for (int w = 0; w < 4; ++w) signs[i + w] = (block.word[w] & 1u) != 0 ? -1.0f : 1.0f;
    }
  }
};

/// Parameters of numerics::hadamard_multiply on `block` elements of K, and of the
/// signs before or after it.
struct Rotation {
  int block, order;
  const float* core;
  float factor;  ///< makes the matrix orthonormal
  bool back, signs_first;
  Signs signs;
};

/// The data of one block of threads: `length` elements of K, whole Hadamard blocks, of `width`
/// neighbouring vectors. In shared memory, element e of vector w lies at e * step + w * stride.
struct Piece {
  int length, width;
  bool transpose;  ///< K runs down the rows

  __host__ __device__ int step() const { return transpose ? width : 1; }
  __host__ __device__ int stride() const { return transpose ? 1 : length; }
  /// Calls body(element, vector) for the first `count` elements of each of `wide` vectors.
  /// Neighbouring threads get elements that are adjacent in memory.
  template <class Body>
  __device__ void for_each(int count, int wide, const Body& body) const {
    for (int i = static_cast<int>(threadIdx.x); i < count * wide; i += kThreads) {
      if (transpose) {
        body(i / wide, i % wide);
      } else {
        body(i % count, i / count);
      }
    }
  }
};

/// Multiplies each group of `order` elements by the core or its transpose.
__device__ void multiply_core(const Rotation& rotation, const Piece& piece, int length, int wide,
                              const float* from, float* to) {
  const int order = rotation.order, step = piece.step();
  piece.for_each(length, wide, [&](int e, int w) {
    const int j = e % order;
    const float* const x = from + (e - j) * step + w * piece.stride();
    const float* const signs = rotation.core + (rotation.back ? j * order : j);
    const int next = rotation.back ? 1 : order;
    float sum = signs[0] * x[0];
    for (int i = 1; i < order; ++i) sum += signs[i * next] * x[i * step];
    to[e * step + w * piece.stride()] = sum;
  });
}

/// Computes sums and differences of the elements of one thread, for spans below `end`.
template <int kCount>
__device__ void add_and_subtract(float (&x)[kCount], int end) {
#pragma unroll
  for (int span = 1; span < kCount; span *= 2) {
    if (span >= end) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i / span % 2 != 0) continue;
      const float low = x[i], high = x[i + span];
      x[i] = low + high;
      x[i + span] = low - high;
    }
  }
}

template <int kCount>
__device__ void multiply(float (&x)[kCount], const float (&by)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] *= by[i];
}

/// Transforms blocks of 8 to 256 along the rows. blockDim.x is a power of two and at least the
/// number of groups in a Hadamard block, so that the lanes of such a block begin at a multiple of
/// their number. Threads beyond the last column or row take part in the shuffles.
template <class T, class R>
__global__ void __launch_bounds__(kThreads)
    rotate_rows_kernel(Rows<T> source, Rows<R> result, std::int64_t rows, std::int64_t cols,
                       const __grid_constant__ Rotation rotation) {
  const std::int64_t col = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kGroup;
  const bool has_col = col < cols;
  float signs[kGroup];
  rotation.signs.of_group(col, signs);
  for (std::int64_t row0 = std::int64_t{blockIdx.y} * blockDim.y; row0 < rows;
       row0 += std::int64_t{gridDim.y} * blockDim.y) {
    const std::int64_t row = row0 + threadIdx.y;
    const bool inside = has_col && row < rows;
    float x[kGroup] = {};
    if (inside) source.load_group(row, col, kGroup, x);
    if (rotation.signs_first) multiply(x, signs);
    add_and_subtract(x, kGroup);
    for (int lanes = 1; lanes * kGroup < rotation.block; lanes *= 2) {
      const bool upper = (threadIdx.x & static_cast<unsigned>(lanes)) != 0;
#pragma unroll
      for (float& value : x) {
        const float other = __shfl_xor_sync(kAllLanes, value, lanes);
        value = upper ? other - value : value + other;
      }
    }
#pragma unroll
    for (float& value : x) value *= rotation.factor;
    if (!rotation.signs_first) multiply(x, signs);
    if (inside) result.store_group(row, col, kGroup, x);
  }
}

/// Two neighbours of a row, in their storage type.
template <class T>
struct alignas(2 * sizeof(T)) Neighbours {
  T first, second;
};

/// Transforms blocks of kBlock down the columns, two columns for each thread.
template <int kBlock, class T, class R>
__global__ void __launch_bounds__(kThreads)
    rotate_columns_kernel(Rows<T> source, Rows<R> result, std::int64_t blocks, std::int64_t cols,
                          const __grid_constant__ Rotation rotation) {
  __shared__ float signs[kBlock];
  const std::int64_t col = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 2;
  for (std::int64_t block = blockIdx.y; block < blocks; block += gridDim.y) {
    const std::int64_t row = block * kBlock;
    __syncthreads();  // all threads are done with the previous block's signs
    if (threadIdx.x < kBlock) signs[threadIdx.x] = rotation.signs.at(row + threadIdx.x);
    __syncthreads();
    if (col >= cols) continue;
    float left[kBlock], right[kBlock];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const auto pair = *reinterpret_cast<const Neighbours<T>*>(source.at(row + i, col));
      left[i] = widen(pair.first), right[i] = widen(pair.second);
    }
    if (rotation.signs_first) {
#pragma unroll
      for (int i = 0; i < kBlock; ++i) left[i] *= signs[i], right[i] *= signs[i];
    }
    add_and_subtract(left, kBlock);
    add_and_subtract(right, kBlock);
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float x = left[i] * rotation.factor, y = right[i] * rotation.factor;
      if (!rotation.signs_first) x *= signs[i], y *= signs[i];
      *reinterpret_cast<Neighbours<R>*>(result.at(row + i, col)) = {narrow<R>(x), narrow<R>(y)};
    }
  }
}

template <class T, class R>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(Rows<T> source, Rows<R> result, std::int64_t k, std::int64_t vectors,
                  const __grid_constant__ Rotation rotation, const __grid_constant__ Piece piece) {
  extern __shared__ float shared[];
  const std::int64_t pieces = (k + piece.length - 1) / piece.length;
  const std::int64_t k0 = blockIdx.x % pieces * piece.length;
  const std::int64_t v0 = blockIdx.x / pieces * piece.width;
  const int length = static_cast<int>(min(k - k0, std::int64_t{piece.length}));
  const int wide = static_cast<int>(min(vectors - v0, std::int64_t{piece.width}));
  const auto at = [&](int e, int w) { return e * piece.step() + w * piece.stride(); };
  const auto row = [&](int e, int w) { return piece.transpose ? k0 + e : v0 + w; };
  const auto col = [&](int e, int w) { return piece.transpose ? v0 + w : k0 + e; };

  float* values = shared;
  piece.for_each(length, wide, [&](int e, int w) {
    const float x = source.load(row(e, w), col(e, w));
    values[at(e, w)] = rotation.signs_first ? x * rotation.signs.at(k0 + e) : x;
  });
  __syncthreads();
  if (rotation.order > 1) {
    float* const products = shared + piece.length * piece.width;
    multiply_core(rotation, piece, length, wide, values, products);
    values = products;
    __syncthreads();
  }
  for (int span = rotation.order; span < rotation.block; span *= 2) {
    piece.for_each(length / 2, wide, [&](int pair, int w) {
      const int low = pair / span * 2 * span + pair % span;
      const float a = values[at(low, w)], b = values[at(low + span, w)];
      values[at(low, w)] = a + b;
      values[at(low + span, w)] = a - b;
    });
    __syncthreads();
  }
  piece.for_each(length, wide, [&](int e, int w) {
    float x = values[at(e, w)] * rotation.factor;
    if (!rotation.signs_first) x *= rotation.signs.at(k0 + e);
    result.store(row(e, w), col(e, w), x);
  });
}

/// Returns the extents of K and of vectors for one block of threads.
Piece piece_of(const TensorView& source, bool transpose, std::int64_t k, std::int64_t block,
               bool has_core) {
  const std::size_t one = static_cast<std::size_t>(block) * sizeof(float) * (has_core ? 2 : 1);
  if (one > kMostShared) {
    throw Error("transform: the cuda backend multiplies at most " +
                std::to_string(kMostShared / sizeof(float) / (has_core ? 2 : 1)) +
                " elements of K by this Hadamard matrix, asked for " + std::to_string(block));
  }
  if (!transpose) {
    return {static_cast<int>(block * std::clamp<std::int64_t>(kFewElements / block, 1, k / block)),
            1, false};
  }
  int width = kWidestStrip;
  while (width > 1 &&
         (one * static_cast<std::size_t>(width) > kUsualShared || width / 2 >= source.cols)) {
    width /= 2;
  }
  return {static_cast<int>(block), width, true};
}

/// Returns true if every row is aligned to pairs of columns.
template <class T>
bool has_pairs(const Rows<T>& rows, std::int64_t cols) {
  return rows.wide && cols % 2 == 0;
}

template <class T, class R>
void rotate_rows(Context& context, const Rows<T>& source, const Rows<R>& result, std::int64_t rows,
                 std::int64_t cols, const Rotation& rotation) {
  const std::int64_t groups = cols / kGroup;
  int across = 1;
  while (across < groups && across < kThreads) across *= 2;
  const int down = kThreads / across;
  const std::int64_t wide = (groups + across - 1) / across;
  const std::int64_t enough = std::int64_t{context.multiprocessors()} * 16;
  const dim3 grid(
      static_cast<unsigned>(wide),
      grid_size(std::min((rows + down - 1) / down, (enough + wide - 1) / wide), kGridYLimit));
  rotate_rows_kernel<<<grid, dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), 0,
                       context.stream()>>>(source, result, rows, cols, rotation);
}

/// Returns false if there is no kernel for this block size.
template <class T, class R>
bool rotate_columns(Context& context, const Rows<T>& source, const Rows<R>& result,
                    std::int64_t rows, std::int64_t cols, const Rotation& rotation) {
  const std::int64_t blocks = rows / rotation.block;
  const dim3 grid(static_cast<unsigned>((cols + 2 * kThreads - 1) / (2 * kThreads)),
                  grid_size(blocks, kGridYLimit));
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, context.stream()>>>(source, result, blocks, cols, rotation);
    return true;
  };
  switch (rotation.block) {
    case 8: return launch(rotate_columns_kernel<8, T, R>);
    case 16: return launch(rotate_columns_kernel<16, T, R>);
    case 32: return launch(rotate_columns_kernel<32, T, R>);
    case 64: return launch(rotate_columns_kernel<64, T, R>);
    default: return false;
  }
}

template <class T, class R>
void rotate_any(Context& context, const Rows<T>& source, const Rows<R>& result, const Piece& piece,
                std::int64_t k, std::int64_t vectors, const Rotation& rotation) {
  const std::int64_t blocks =
      (k + piece.length - 1) / piece.length * ((vectors + piece.width - 1) / piece.width);
  const std::size_t shared = static_cast<std::size_t>(piece.length) *
                             static_cast<std::size_t>(piece.width) * sizeof(float) *
                             (rotation.order > 1 ? 2 : 1);
  check(cudaFuncSetAttribute(rotate_kernel<T, R>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kMostShared)),
        "cudaFuncSetAttribute");
  rotate_kernel<<<static_cast<unsigned>(blocks), kThreads, shared, context.stream()>>>(
      source, result, k, vectors, rotation, piece);
}

}  // namespace

void rotate(Context& context, const TensorView& source, const TensorView& result, bool down,
            const Hadamard& hadamard, const RandomKey& key, bool back) {
  const std::int64_t k = down ? source.rows : source.cols;
  const std::int64_t block = hadamard.block == 0 ? k : hadamard.block;
  const int order = numerics::hadamard_core(block);
  Rotation rotation{static_cast<int>(block),
                    order,
                    order > 1 ? context.hadamard_core(order) : nullptr,
                    numerics::hadamard_factor(block),
                    back,
                    (hadamard.side == SignSide::before) != back,
                    {hadamard.signs, hadamard.pattern_length, {}, key}};
  std::copy(hadamard.negative_signs.begin(), hadamard.negative_signs.end(), rotation.signs.pattern);
  const std::int64_t vectors = down ? source.cols : source.rows;
  const bool in_registers = order == 1 && block >= kGroup && k % block == 0;
  with_rows(
      [&]<class T, class R>(const Rows<T>& from, const Rows<R>& to) {
        if (in_registers && !down && block <= kWarpSize * kGroup) {
          return rotate_rows(context, from, to, source.rows, source.cols, rotation);
        }
        if (in_registers && down && has_pairs(from, source.cols) && has_pairs(to, source.cols) &&
            rotate_columns(context, from, to, source.rows, source.cols, rotation)) {
          return;
        }
        rotate_any(context, from, to, piece_of(source, down, k, block, order > 1), k, vectors,
                   rotation);
      },
      source, result);
  check_launch("transform: hadamard");
}

}  // namespace fp8lab::cuda
