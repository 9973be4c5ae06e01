// Shared parts of the attention kernels: the problem, tiles in shared
// memory, visibility and chains.
//
// A block of kAttentionWarps warps works on tiles of kTileRows queries and kTileRows keys. A warp
// owns 16 rows of the left operand, which is the height of the tensor-core instruction and of the
// CPU's row block. So it skips exactly the groups of 16 that the CPU skips, and the bits agree even
// if an operand is not finite. A head dimension wider than the tile is summed in steps of kWidth
// columns, ascending, and its output columns are split over blocks.
//
//   Tile in shared memory            product of a warp (mma.sync m16n8k16)
//   +--------- kWidth --------+--+            n8 block 0        n8 block 1     ...
//   | row 0                   |16| row g   : lane 4 g + t     |
//   | row 1                   |by|           columns 2 t, +1  |  columns 8 + 2 t, +1
//   |  ...      bf16 or f32   |te| row g+8 : the same lane,   |
//   | row 63                  |s |           elements 2, 3    |
//   +-------------------------+--+
//
//   operands by ldmatrix (bf16) or scalar reads (f32), in either orientation: `Stored` says whether
//   the tile holds an operand as the product uses it or transposed, so that no transpose is stored.
//   A chain takes groups of 16 of the summed index, ascending; the bits of `groups` and `pairs`
//   skip the groups of the summed index and of the columns in which everything is masked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "emulation/numerics/attention_weight.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/ops/attention/attention.hpp"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/ptx/mma_sync.cuh"
#include "kernels/runtime/context.hpp"

namespace fp8lab::cuda {

inline constexpr int kTileRows = 64;  ///< queries or keys of a tile
inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = kWarpSize * kAttentionWarps;
/// Target number of blocks on an SM, for a kernel with one accumulator of kWidth columns: as many
/// as 65536 registers allow almost without spilling.
template <int kWidth>
inline constexpr int kBlocksPerSm = kWidth <= 64 ? 3 : 2;
inline constexpr int kChainGroup = static_cast<int>(kAttentionGroup);
inline constexpr int kScoreBlocks = kTileRows / 8;  ///< n8 blocks of a row of scores
inline constexpr float kMinusInfinity = -__builtin_inff();

// --- problem ------------------------------------------------------------------------------------

/// Arguments of one attention call. Tiles wider than the sequence are cut to
/// it, which changes no bit.
struct AttentionProblem {
  int batch, sequence, heads, kv_heads, head_dim, kv_tile, q_tile;
  int window;  ///< keys that a query sees at most; no limit: longer than every sequence
  AttentionFactors factors;
  const std::int32_t* document_start;  ///< (T), clamped by `document`
  std::int32_t* block_start;  ///< (B, row_blocks): smallest start of 16 consecutive queries

  __host__ __device__ int group() const { return heads / kv_heads; }
  __host__ __device__ int row_blocks() const { return (sequence + kChainGroup - 1) / kChainGroup; }
  __host__ __device__ int tiles() const { return (sequence + kTileRows - 1) / kTileRows; }
  __host__ __device__ std::int64_t tokens() const {
    return static_cast<std::int64_t>(batch) * sequence;
  }
  __host__ __device__ std::int64_t token(int b, int position) const {
    return static_cast<std::int64_t>(b) * sequence + position;
  }
  /// Returns the document start of query `position`. A value out of range, a Fault, is clamped.
  __device__ int document(int b, int position) const {
    return max(0, min(document_start[token(b, position)], position));
  }
  /// Returns the first key that query `position` sees.
  __device__ int start(int b, int position) const {
    return max(document(b, position), position - window + 1);
  }
};

/// Operand rows (T, ..) of storage type T: bf16 bits or float.
template <class T>
struct OperandRows {
  const T* data;
  std::int64_t stride;
};

template <class T>
OperandRows<T> operand_rows(const TensorView& view) {
  return {view.row<const T>(0), view.row_stride};
}

/// Result rows in bf16 or f32; store() rounds and makes NaN canonical.
struct ResultRows {
  void* data;
  std::int64_t stride;
  bool bf16;

  __device__ void store(std::int64_t row, std::int64_t column, float value) const {
    const std::int64_t i = row * stride + column;
    if (bf16) {
      static_cast<std::uint16_t*>(data)[i] = numerics::to_bf16(value);
    } else {
      static_cast<float*>(data)[i] = numerics::canonical_nan(value);
    }
  }
  __device__ float load(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * stride + column;
    return bf16 ? numerics::from_bf16(static_cast<const std::uint16_t*>(data)[i])
                : static_cast<const float*>(data)[i];
  }
};

inline ResultRows result_rows(const TensorView& view) {
  return {view.data, view.row_stride, view.dtype == DType::bf16};
}

__device__ inline void to_operand(float value, std::uint16_t* operand) {
  *operand = numerics::to_bf16(value);
}
__device__ inline void to_operand(float value, float* operand) { *operand = value; }
__device__ inline float from_operand(std::uint16_t operand) { return numerics::from_bf16(operand); }
__device__ inline float from_operand(float operand) { return operand; }

// --- tiles --------------------------------------------------------------------------------------

/// Rows of one head: tokens [token, token + count), head_dim columns starting at `column`.
template <class T>
struct HeadRows {
  OperandRows<T> rows;
  std::int64_t token;
  int count;
  int column;
};

/// A tile of kTileRows x kWidth operands in shared memory. Row starts differ by 16 bytes
/// modulo 128, so that neither ldmatrix nor scalar reads have bank conflicts. Missing
/// rows and columns are zeros.
template <class T, int kWidth>
class Tile {
 public:
  static constexpr int kVector = static_cast<int>(16 / sizeof(T));
  static constexpr int kStride = kWidth + kVector;
  static constexpr int kElements = kTileRows * kStride;

  __device__ explicit Tile(T* data) : data_(data) {}

  __device__ T* row(int r) const { return data_ + r * kStride; }

  /// Loads columns [first, first + kWidth) of the head; does nothing if the tile holds them
  /// already. Precondition: all threads of the block call it, with a barrier after the last
  /// read and before the next.
  __device__ void load(const HeadRows<T>& source, int first, int head_dim) {
    const T* corner = source.rows.data + source.token * source.rows.stride + source.column + first;
    if (corner == held_) return;
    held_ = corner;
    const std::int64_t stride = source.rows.stride;
    const bool aligned = ((reinterpret_cast<std::uintptr_t>(corner) |
                           static_cast<std::uintptr_t>(stride) * sizeof(T)) %
                          16) == 0;
    constexpr int kVectors = kWidth / kVector;
    constexpr int kBatch = 4;  // loads in flight
    static_assert(kTileRows * kVectors % (kBatch * kAttentionThreads) == 0);
    for (int batch = 0; batch < kTileRows * kVectors; batch += kBatch * kAttentionThreads) {
      uint4 values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int slot = batch + i * kAttentionThreads + static_cast<int>(threadIdx.x);
        const int r = slot / kVectors, c = slot % kVectors * kVector;
        const int count = r < source.count ? head_dim - first - c : 0;
        values[i] = read(corner + r * stride + c, count, aligned);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int slot = batch + i * kAttentionThreads + static_cast<int>(threadIdx.x);
        *reinterpret_cast<uint4*>(row(slot / kVectors) + slot % kVectors * kVector) = values[i];
      }
    }
  }

 private:
  /// Returns 16 bytes of operands, with zeros from element `count` on.
  __device__ static uint4 read(const T* from, int count, bool aligned) {
    if (aligned && count >= kVector) return *reinterpret_cast<const uint4*>(from);
    T values[kVector];
#pragma unroll
    for (int e = 0; e < kVector; ++e) values[e] = e < count ? from[e] : T{};
    uint4 bits;
    std::memcpy(&bits, values, sizeof bits);
    return bits;
  }

  T* data_;
  const T* held_ = nullptr;
};

/// Returns 2^-d for the distance d of a score; the type of the operands chooses the function.
template <class T>
__device__ float weight_of(float d) {
  if constexpr (sizeof(T) == sizeof(float)) return numerics::wide_attention_weight(d);
  return numerics::attention_weight(d);
}

// --- chains -------------------------------------------------------------------------------------

/// Lane 4 g + t holds rows g and g + 8 and columns 2 t + 0..1 of an accumulator fragment.
__device__ inline int fragment_row() { return lane_id() / 4; }
__device__ inline int fragment_column() { return lane_id() % 4 * 2; }

template <int kBlocks>
__device__ void clear(float (&acc)[kBlocks][4]) {
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] = 0.0f;
  }
}

/// Orientation of an operand in its tile: as the product uses it, or transposed.
enum class Stored { as_is, transposed };

/// Loads the A operand (16, 16) of a group from bf16 rows of `stride` elements.
template <Stored kStored>
__device__ void load_left(const std::uint16_t* a, int stride, std::uint32_t (&x)[4]) {
  const int r = lane_id() % 8, i = lane_id() / 8;
  if constexpr (kStored == Stored::as_is) {
    load_matrices(a + (r + 8 * (i % 2)) * stride + 8 * (i / 2), x);
  } else {
    load_matrices_transposed(a + (r + 8 * (i / 2)) * stride + 8 * (i % 2), x);
  }
}

/// Loads the B operands (16, 16) of two neighbouring n8 blocks: x[0..1] for the first
/// block, x[2..3] for the second.
template <Stored kStored>
__device__ void load_right(const std::uint16_t* b, int stride, std::uint32_t (&x)[4]) {
  const int r = lane_id() % 8, i = lane_id() / 8;
  if constexpr (kStored == Stored::as_is) {
    load_matrices_transposed(b + (r + 8 * (i % 2)) * stride + 8 * (i / 2), x);
  } else {
    load_matrices(b + (r + 8 * (i / 2)) * stride + 8 * (i % 2), x);
  }
}

/// Adds one group of 16 of chain(acc; a, b) for 16 rows and for the column pairs (16 columns each)
/// whose bit is set. bf16: one tensor-core instruction for each n8 block.
template <Stored kLeft, Stored kRight, int kBlocks>
__device__ void chain_group(const std::uint16_t* a, int a_stride, const std::uint16_t* b,
                            int b_stride, unsigned pairs, float (&acc)[kBlocks][4]) {
  std::uint32_t left[4];
  load_left<kLeft>(a, a_stride, left);
#pragma unroll
  for (int pair = 0; pair < kBlocks / 2; ++pair) {
    if ((pairs >> pair & 1u) == 0) continue;
    std::uint32_t right[4];
    load_right<kRight>(b + pair * 16 * (kRight == Stored::as_is ? 1 : b_stride), b_stride, right);
    multiply_group(left, right[0], right[1], acc[2 * pair]);
    multiply_group(left, right[2], right[3], acc[2 * pair + 1]);
  }
}

/// For f32 operands: fma in ascending order, then + (+0).
template <Stored kLeft, Stored kRight, int kBlocks>
__device__ void chain_group(const float* a, int a_stride, const float* b, int b_stride,
                            unsigned pairs, float (&acc)[kBlocks][4]) {
  const int row = fragment_row(), column = fragment_column();
  const int a_row = kLeft == Stored::as_is ? a_stride : 1;
  const int a_col = kLeft == Stored::as_is ? 1 : a_stride;
  const int b_row = kRight == Stored::as_is ? b_stride : 1;
  const int b_col = kRight == Stored::as_is ? 1 : b_stride;
#pragma unroll 2
  for (int k = 0; k < kChainGroup; ++k) {
    const float upper = a[row * a_row + k * a_col];
    const float lower = a[(row + 8) * a_row + k * a_col];
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if ((pairs >> n / 2 & 1u) == 0) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float right = b[k * b_row + (8 * n + column + e) * b_col];
        acc[n][e] = __fmaf_rn(upper, right, acc[n][e]);
        acc[n][2 + e] = __fmaf_rn(lower, right, acc[n][2 + e]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kBlocks; ++n) {
    if ((pairs >> n / 2 & 1u) == 0) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] = __fadd_rn(acc[n][i], 0.0f);
  }
}

/// Computes acc = chain(acc; a, b) over the groups of 16 whose bit is set, ascending. `a` and `b`
/// point to element (0, 0) of the operands: 16 rows by the summed index, and the summed index by 8
/// kBlocks columns. Precondition: all lanes of the warp call it with the same masks.
template <Stored kLeft, Stored kRight, class T, int kBlocks>
__device__ void chain(const T* a, int a_stride, const T* b, int b_stride, unsigned groups,
                      unsigned pairs, float (&acc)[kBlocks][4]) {
  const int a_step = kChainGroup * (kLeft == Stored::as_is ? 1 : a_stride);
  const int b_step = kChainGroup * (kRight == Stored::as_is ? b_stride : 1);
  for (int group = 0; groups >> group != 0; ++group) {
    if ((groups >> group & 1u) == 0) continue;
    chain_group<kLeft, kRight>(a + group * a_step, a_stride, b + group * b_step, b_stride, pairs,
                               acc);
  }
}

/// Adds one group of chain(acc; a, ones); `acc` holds two neighbouring columns of the result.
__device__ inline void row_sum_group(const std::uint16_t* a, int stride, float (&acc)[4]) {
  constexpr std::uint32_t kOnes = 0x3F803F80u;  // bf16
  std::uint32_t left[4];
  load_left<Stored::as_is>(a, stride, left);
  multiply_group(left, kOnes, kOnes, acc);
}
__device__ inline void row_sum_group(const float* a, int stride, float (&acc)[4]) {
  const int row = fragment_row();
  for (int k = 0; k < kChainGroup; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      acc[i] = __fmaf_rn(a[(row + i / 2 * 8) * stride + k], 1.0f, acc[i]);
    }
  }
#pragma unroll
  for (float& sum : acc) sum = __fadd_rn(sum, 0.0f);
}
/// Computes acc = chain(acc; a, ones) over the groups of 16 columns of a
/// whose bit is set, ascending.
template <class T>
__device__ void add_rows(const T* a, int stride, unsigned groups, float (&acc)[4]) {
  for (int group = 0; groups >> group != 0; ++group) {
    if ((groups >> group & 1u) != 0) row_sum_group(a + group * kChainGroup, stride, acc);
  }
}

/// Returns one bit for each 16 of `count` elements, the last of which may be
/// incomplete; at most 16 bits.
__device__ inline unsigned group_bits(int count) {
  return (1u << (count + kChainGroup - 1) / kChainGroup) - 1u;
}

/// Computes acc (16 rows of the warp, kTileRows) = chain(acc; a, b^T) over the head
/// dimension, for the groups of 16 rows of b in `pairs`. Fills the tiles as needed.
/// Precondition: the whole block calls it.
template <class T, int kWidth>
__device__ void add_scores(const HeadRows<T>& a, const HeadRows<T>& b, int head_dim, unsigned pairs,
                           Tile<T, kWidth>& a_tile, Tile<T, kWidth>& b_tile,
                           float (&acc)[kScoreBlocks][4]) {
  for (int first = 0; first < head_dim; first += kWidth) {
    __syncthreads();
    a_tile.load(a, first, head_dim);
    b_tile.load(b, first, head_dim);
    __syncthreads();
    if (pairs == 0) continue;
    chain<Stored::as_is, Stored::transposed>(
        a_tile.row(warp_id() * kChainGroup), Tile<T, kWidth>::kStride, b_tile.row(0),
        Tile<T, kWidth>::kStride, group_bits(min(kWidth, head_dim - first)), pairs, acc);
  }
}

// --- sequences ----------------------------------------------------------------------------------

/// One sequence of packed documents; queries and keys have the same rows.
struct PackedSequence {
  const AttentionProblem& problem;
  int b;

  __device__ int first() const { return 0; }                  ///< position of the first query
  __device__ int length() const { return problem.sequence; }  ///< end of the key positions
  __device__ std::int64_t query_row(int position) const { return problem.token(b, position); }
  __device__ std::int64_t key_row(int position) const { return problem.token(b, position); }
  __device__ int start(int position) const { return problem.start(b, position); }
  /// Returns the smallest start of the 16 queries from `position` on, a multiple of 16.
  __device__ int block_start(int position) const {
    return problem.block_start[b * problem.row_blocks() + position / kChainGroup];
  }
};

/// New tokens of one sequence in a cache: one document, whose first `held` tokens are cached.
struct CachedSequence {
  std::int64_t query_base, key_base;  ///< rows of position 0
  int held, end;                      ///< positions of the queries are [held, end)
  int window;                         ///< AttentionProblem::window

  __device__ int first() const { return held; }
  __device__ int length() const { return end; }
  __device__ std::int64_t query_row(int position) const { return query_base + position; }
  __device__ std::int64_t key_row(int position) const { return key_base + position; }
  __device__ int start(int position) const { return max(0, position - window + 1); }
  __device__ int block_start(int position) const { return start(position); }
};

/// The token counts of attention_cached.
struct NewTokens {
  const std::int32_t* query_start;
  const std::int32_t* cached;
  int rows, batch, capacity;
  int window;  ///< AttentionProblem::window

  __device__ int first(int b) const { return query_start[b]; }
  __device__ int count(int b) const { return query_start[b + 1] - query_start[b]; }
  /// Returns true if the counts of sequence b are valid.
  __device__ bool fits(int b) const {
    return first(b) >= 0 && count(b) >= 0 && first(b) + count(b) <= rows && cached[b] >= 0 &&
           cached[b] <= capacity - count(b);
  }
  __device__ CachedSequence sequence(int b) const {
    return {std::int64_t{first(b)} - cached[b], std::int64_t{b} * capacity, cached[b],
            cached[b] + count(b), window};
  }
};

// --- visibility ---------------------------------------------------------------------------------

/// The 16 queries of a warp. A thread holds rows g and g + 8 of them.
struct WarpQueries {
  int first_key;  ///< smallest start of the 16; they see keys of [first_key, last_key)
  int last_key;
  int position[2];  ///< of the thread's rows; -1 past the sequence: such a row sees nothing
  int start[2];

  template <class Sequence>
  __device__ WarpQueries(const Sequence& sequence, int first) {
    const bool inside = first < sequence.length();
    first_key = inside ? sequence.block_start(first) : first;
    last_key = inside ? min(first + kChainGroup, sequence.length()) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = first + fragment_row() + 8 * r;
      position[r] = i < sequence.length() ? i : -1;
      start[r] = i < sequence.length() ? sequence.start(i) : 0;
    }
  }
  __device__ bool sees(int r, int key) const { return start[r] <= key && key <= position[r]; }
  /// Returns true if row r sees a key of [first, last).
  __device__ bool sees_any(int r, int first, int last) const {
    return max(start[r], first) < min(position[r] + 1, last);
  }
  /// Returns the groups of 16 keys of the tile [first, last) that contain a key which some row may
  /// see. Only these groups take part in the chains. Precondition: `first` is a multiple of 16.
  __device__ unsigned groups(int first, int last) const {
    const int lower = max(first_key, first), upper = min(last_key, last);
    if (lower >= upper) return 0;
    return group_bits(upper - first) & ~((1u << (lower - first) / kChainGroup) - 1u);
  }
};

/// The range of keys that the queries of the tile from `query` on may see, over all warps.
struct KeyRange {
  int first, last;

  template <class Sequence>
  __device__ KeyRange(const Sequence& sequence, int query) {
    last = min(query + kTileRows, sequence.length());
    first = last;
    for (int i = query; i < last; i += kChainGroup) first = min(first, sequence.block_start(i));
  }
};

// --- launches -----------------------------------------------------------------------------------

/// Converts checked arguments to the form that the kernels use. Precondition: `block_start` has
/// room for B * row_blocks() values. Throws Error if sizes exceed the kernels' index types.
AttentionProblem make_attention_problem(const char* operation, const AttentionShape& shape,
                                        const TensorView& document_start,
                                        std::int32_t* block_start);

/// Returns the number of values of AttentionProblem::block_start.
std::size_t block_start_count(const AttentionShape& shape);

/// Fills problem.block_start and reports starts after their token as Fault::document_start.
void find_block_starts(Context& context, const AttentionProblem& problem);

/// Launches `kernel` with `blocks` blocks of kAttentionThreads threads and
/// `bytes` of shared memory.
template <class... Parameters, class... Arguments>
void launch_attention(Context& context, const char* name, void (*kernel)(Parameters...),
                      std::int64_t blocks, std::size_t bytes, const Arguments&... arguments) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        name);
  kernel<<<static_cast<unsigned>(blocks), kAttentionThreads, bytes, context.stream()>>>(
      arguments...);
  check_launch(name);
}

/// Returns the block's dynamic shared memory.
template <class T>
__device__ T* shared_memory() {
  extern __shared__ uint4 attention_memory[];
  return reinterpret_cast<T*>(attention_memory);
}

}  // namespace fp8lab::cuda
