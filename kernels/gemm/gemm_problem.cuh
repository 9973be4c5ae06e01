// Data structures of the wgmma GEMM's device code: the problem, its tiles, and a
// thread's position in a tile.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/schedule.hpp"
#include "kernels/gemm/gemm_wgmma.hpp"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

// A persistent kernel: each block computes its share of the tiles one after another, so that the
// copies for the next tile overlap with the writes of the last one. Each consumer warpgroup
// multiplies 64 or 128 rows of a tile; one producer warpgroup copies. Two blocks may form a
// cluster: their tiles are vertical neighbours, and each block copies half of B for both. Tiles
// that would leave blocks idle in the last round are divided along K (stream-K).
constexpr int kTileBytes = 128;  ///< bytes of K in one row of a stage: the swizzle's width
constexpr int kStepsPerStage = kTileBytes / 32;  ///< one instruction takes 32 bytes of K
constexpr int kMaxCluster = 2;
constexpr int kBlockColumns = 64;  ///< columns of a tile that may share scales
constexpr int kBlockRows = 64;     ///< rows in one line of a stage, if rows are contiguous

/// How a kernel divides the sums of a tile into chains, and promotes them.
enum class Chains {
  one,         ///< one chain over the whole range
  ping_pong,   ///< one chain a stage; a warpgroup promotes while another multiplies
  overlapped,  ///< one chain a stage, issued before the last is promoted: two sets of partial sums
  any_length,  ///< chains of any number of instructions
};

/// The scale of every element of an operand without scales.
static __device__ const float kUnitScale = 1.0f;

/// A ScaleGrid with 32-bit division.
struct Grid {
  const float* data;
  int stride, rows, cols;

  /// Returns the scales of a row of the operand, one for each `cols` elements of K.
  __device__ const float* row(int index) const {
    if (data == nullptr) return &kUnitScale;
    return data + static_cast<std::int64_t>(rows == 1 ? index : index / rows) * stride;
  }
  __device__ float at(int index) const { return *row(index); }
};

/// Layout of the scales of a tile's columns for the threads of a Fragment. The scales of one thread
/// are contiguous; those of the four threads of a row begin in different shared-memory banks. The
/// two scales of a pair are swapped: a vector load fills consecutive registers, and only after a
/// swap do a scale and the partial sum that it multiplies lie in different register banks.
/// Otherwise their FMA would read one bank twice, and wgmma reads that bank too.
__host__ __device__ constexpr int scale_thread_stride(int tile_n) { return tile_n / 4 + 4; }
/// Number of scales that a tile copies for its columns and one chunk of K, padded to 16 bytes: one
/// for each `columns` columns.
__host__ __device__ constexpr int scale_places(int tile_n, int columns) {
  return columns > 1 ? (tile_n / columns + 3) / 4 * 4 : 4 * scale_thread_stride(tile_n);
}
/// Returns the column of a tile that a place belongs to; at least tile_n if the place is padding.
__host__ __device__ constexpr int scale_column(int place, int tile_n, int columns) {
  if (columns > 1) return place * columns;
  const int stride = scale_thread_stride(tile_n);
  const int thread = place / stride, own = place % stride;
  return own < tile_n / 4 ? own / 2 * 8 + thread * 2 + 1 - own % 2 : tile_n;
}

/// Width of a tile with scales inside the sum.
constexpr int kScaledTileN = 128;

/// Divides numbers below 2^31 by a positive divisor, by multiplication: with s = ceil(log2 d) and
/// m = ceil(2^(31 + s) / d), x / d is x * m >> (31 + s).
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int d) : value_(d) {
    int log = 0;
    while ((std::int64_t{1} << log) < d) ++log;
    if (log == 0) return;
    const std::uint64_t divisor = static_cast<std::uint64_t>(d);
    multiplier_ =
        static_cast<std::uint32_t>(((std::uint64_t{1} << (31 + log)) + divisor - 1) / divisor);
    shift_ = log - 1;
  }
  __device__ int value() const { return value_; }
  __device__ int quotient(int x) const {
    if (multiplier_ == 0) return x;  // division by 1
    return static_cast<int>(__umulhi(static_cast<std::uint32_t>(x), multiplier_) >> shift_);
  }

 private:
  int value_ = 1, shift_ = 0;
  std::uint32_t multiplier_ = 0;
};

/// The tiles of a GEMM.
struct Tiling {
  Chains chains = Chains::one;
  int tile_m = 0, tile_n = 0;
  int cluster = 1;
};

/// A WgmmaGemm in the form that the kernel uses.
struct Problem {
  int m, n, k;
  Tiling tiling;
  int tiles_m, tiles_n;  ///< tiles_m is a multiple of the cluster
  /// Rows of clusters in a group, which are computed together so that their A stays in the L2; rows
  /// of the last, smaller group; tiles of a cluster in a group.
  Divisor group, last_group, group_tiles;
  bool blocks_b;           ///< each kBlockColumns columns share the scales of step_b
  int chunk, chunk_steps;  ///< K of one chain, in elements and in instructions
  int splits, range;
  int whole;            ///< tiles that a cluster computes whole; later ones are divided along K
  int stages, stage_k;  ///< stages of a tile along K; elements of K in a stage
  int share, longer_shares;  ///< stages of divided tiles for a cluster; clusters with one more
  float* handed;      ///< sums that blocks hand over, tile_m * tile_n of 32 bits for each block
  unsigned* signals;  ///< Context::signals: a warp sets its own when its sums are stored
  /// Scales inside the sum along K, in the order in which the kernel copies them: for each chunk,
  /// the scales of the rows of A, and scale_places scales for each tile along N.
  float *step_a, *step_b;
  Grid outer_a, outer_b;  ///< scales of the epilogue
  numerics::Epilogue epilogue;
  const void* bias;
  bool bias_bf16;
  void* d;
  std::int64_t d_stride;
  bool paired;   ///< two neighbouring columns of d can be written in one access
  bool boxed;    ///< d is written in boxes through shared memory
  float* parts;  ///< (splits, m, n) if K is split
};

/// Tensor maps of the operands; of their scales inside the sum along K, if there are any; and of d,
/// if it is written in boxes.
struct Maps {
  CUtensorMap a, b, step_a, step_b, d;
};

struct Tile {
  int m0, n0, k_begin, k_end, split;
  bool resumes;     ///< its sums start from those that another block has handed over
  bool hands_over;  ///< its sums are handed over to the block that ends the tile
};

/// The tiles of a block in order. Whole tiles come first, as long as every block gets one. Then
/// comes the block's share of the divided tiles, in descending order: it begins the tile that the
/// next cluster ends before it waits for the sums of the tile that the previous cluster began.
/// Therefore every wait ends.
class TileScheduler {
 public:
  /// `rank` is the block's rank in its cluster.
  __device__ TileScheduler(const Problem& p, int rank) : p_(p), rank_(rank) { go_whole(cluster()); }
  __device__ bool done() const { return done_; }
  __device__ const Tile& tile() const { return tile_; }
  __device__ void next() {
    if (index_ < p_.whole) return go_whole(index_ + clusters());
    go_shared(index_ - 1 - p_.whole);
  }

 private:
  // A cluster has one or two blocks.
  __device__ int cluster() const { return static_cast<int>(blockIdx.x) >> (p_.tiling.cluster - 1); }
  __device__ int clusters() const { return static_cast<int>(gridDim.x) >> (p_.tiling.cluster - 1); }
  /// Returns the first stage of the divided tiles that belongs to a cluster.
  __device__ int share(int cluster) const {
    return cluster * p_.share + min(cluster, p_.longer_shares);
  }
  __device__ void go_whole(int index) {
    if (index >= p_.whole) return go_shared((share(cluster() + 1) - 1) / p_.stages);
    place(index);
  }
  __device__ void go_shared(int index) {
    const int before = index * p_.stages;
    const int from = max(share(cluster()) - before, 0);
    const int to = min(share(cluster() + 1) - before, p_.stages);
    done_ = from >= to;
    place(p_.whole + index);
    tile_.resumes = from > 0;
    tile_.hands_over = to < p_.stages;
    tile_.k_begin = from * p_.stage_k;
    if (tile_.hands_over) tile_.k_end = to * p_.stage_k;
  }
  __device__ void place(int index) {
    index_ = index;
    const int high = p_.tiles_m >> (p_.tiling.cluster - 1);  // in clusters
    const int tiles = high * p_.tiles_n;
    tile_.split = p_.splits > 1 ? index / tiles : 0;
    const int i = index - tile_.split * tiles;
    const int first = p_.group_tiles.quotient(i) * p_.group.value();
    const Divisor height = first + p_.group.value() <= high ? p_.group : p_.last_group;
    const int in_group = i - first * p_.tiles_n;
    const int column = height.quotient(in_group);
    const int row = first + in_group - column * height.value();
    tile_.m0 = (row * p_.tiling.cluster + rank_) * p_.tiling.tile_m;
    tile_.n0 = column * p_.tiling.tile_n;
    tile_.k_begin = tile_.split * p_.range;
    tile_.k_end = min(p_.k, tile_.k_begin + p_.range);
    tile_.resumes = tile_.hands_over = false;
  }

  const Problem& p_;
  int rank_;
  int index_;
  bool done_ = false;
  Tile tile_;
};

/// A consumer thread's part of a (64, n) accumulator. Element i is in row `row` + 8 * (i / 2 % 2)
/// and column `column` + 8 * (i / 4) + i % 2 (PTX ISA, wgmma register fragment of D).
struct Fragment {
  int row, column;
  __device__ Fragment() {
    const int thread = threadIdx.x % kWarpgroup;
    row = thread / 32 * 16 + thread % 32 / 4;
    column = thread % 4 * 2;
  }
};

}  // namespace fp8lab::cuda
