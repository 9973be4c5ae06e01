// The epilogue of a tile of the wgmma GEMM: applies scales, alpha, beta and bias, and writes d
// (emulation/specification.md, "Epilogue and split K").
#pragma once

#include "kernels/gemm/gemm_problem.cuh"
#include "kernels/ptx/ptx.cuh"

namespace fp8lab::cuda {

/// Shared memory of one consumer warpgroup's epilogue: boxes of d that are written together. A box
/// has 64 rows by kColumns of bf16, 128 or 64 bytes wide like the swizzle.
template <int kColumns_, int kBoxes_>
struct Staging {
  static constexpr int kColumns = kColumns_, kBoxes = kBoxes_;
  alignas(1024) unsigned char boxes[kBoxes][64 * kColumns * 2];
};
template <int kTileN>
struct ColumnScales {
  float values[kTileN];
};

__device__ inline float bias_at(const Problem& p, int column) {
  if (p.bias_bf16) {
    return numerics::from_bf16(static_cast<const std::uint16_t*>(p.bias)[column]);
  }
  return static_cast<const float*>(p.bias)[column];
}

/// Returns the FP32 value of an element after the epilogue of split-K
/// (emulation/specification.md, "Epilogue and split K").
__device__ inline float finished(const Problem& p, float value, float sa, float sb, float c,
                                 int column) {
  if (p.bias == nullptr) return numerics::epilogue_value(p.epilogue, value, sa, sb, c, nullptr);
  const float bias = bias_at(p, column);
  return numerics::epilogue_value(p.epilogue, value, sa, sb, c, &bias);
}

/// Accesses one element of d or two neighbouring ones.
struct Output {
  const Problem& p;
  bool pair;  ///< the second element is inside d

  __device__ float2 load(int row, int column) const {
    const float* at = static_cast<const float*>(p.d) + row * p.d_stride + column;
    if (pair && p.paired) return *reinterpret_cast<const float2*>(at);
    return {at[0], pair ? at[1] : 0.0f};
  }
  __device__ void store(float2 value, int row, int column) const {
    const std::int64_t at = row * p.d_stride + column;
    if (p.epilogue.output.bits() == 16) {
      auto* d = static_cast<__nv_bfloat16*>(p.d) + at;
      const __nv_bfloat162 rounded = __float22bfloat162_rn(value);  // NaN becomes 0x7FFF
      if (pair && p.paired) {
        *reinterpret_cast<__nv_bfloat162*>(d) = rounded;
      } else {
        d[0] = rounded.x;
        if (pair) d[1] = rounded.y;
      }
    } else {
      float* d = static_cast<float*>(p.d) + at;
      value = {numerics::canonical_nan(value.x), numerics::canonical_nan(value.y)};
      if (pair && p.paired) {
        *reinterpret_cast<float2*>(d) = value;
      } else {
        d[0] = value.x;
        if (pair) d[1] = value.y;
      }
    }
  }
};

/// The factors of the epilogue: s for every element, sa for this thread's two rows, and a scale for
/// each column, which the warpgroup shares through shared memory. Without kScales, alpha alone.
/// They are loaded when a tile begins and used at its end.
template <int kTileN, bool kScales>
class TileScales {
 public:
  __device__ void load(const Problem& p, const Tile& tile, const Fragment& fragment) {
    s = p.epilogue.alpha;
    if constexpr (!kScales) return;
    outer_ = p.epilogue.scales == numerics::EpilogueScales::outer;
    if (!outer_) {
      s = __fmul_rn(__fmul_rn(s, p.outer_a.at(0)), p.outer_b.at(0));
      return;
    }
    const int row = tile.m0 + fragment.row;
    sa[0] = p.outer_a.at(min(row, p.m - 1));
    sa[1] = p.outer_a.at(min(row + 8, p.m - 1));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int column = tile.n0 + i * kWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup;
      own_[i] = p.outer_b.at(min(column, p.n - 1));
    }
  }
  /// Precondition: the whole warpgroup calls it. `barrier` is its named barrier.
  __device__ void share(ColumnScales<kTileN>& columns, int barrier) const {
    if (!outer_) return;
    named_sync(barrier, kWarpgroup);  // the previous tile's scales have been read
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int column = i * kWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup;
      if (column < kTileN) columns.values[column] = own_[i];
    }
    named_sync(barrier, kWarpgroup);
  }
  __device__ bool outer() const { return outer_; }

  float s = 1.0f;
  float sa[2] = {1.0f, 1.0f};

 private:
  static constexpr int kOwn = (kTileN + kWarpgroup - 1) / kWarpgroup;
  bool outer_ = false;
  float own_[kOwn] = {};
};

/// Finishes elements (row + 8 r, column) and (row + 8 r, column + 1) of a kernel without split K:
/// v = fma(A, s, c) + bias. Free of branches, because it runs for every element of a tile.
template <bool kOuter, bool kBias, class Scales>
__device__ inline float2 finish(const Scales& scales, float2 sb, float2 bias, float2 v, int r,
                                float2 c) {
  if constexpr (kOuter) {
    v = {__fmul_rn(__fmul_rn(v.x, scales.sa[r]), sb.x),
         __fmul_rn(__fmul_rn(v.y, scales.sa[r]), sb.y)};
  }
  v = {__fmaf_rn(v.x, scales.s, c.x), __fmaf_rn(v.y, scales.s, c.y)};
  if constexpr (kBias) v = {__fadd_rn(v.x, bias.x), __fadd_rn(v.y, bias.y)};
  return v;
}

/// Returns the scales of a column of the tile and of the next one.
template <bool kOuter, int kTileN>
__device__ inline float2 column_scales(const ColumnScales<kTileN>& columns, int column) {
  if constexpr (kOuter) return *reinterpret_cast<const float2*>(columns.values + column);
  return {1.0f, 1.0f};
}
template <bool kBias>
__device__ inline float2 column_bias(const Problem& p, int column) {
  if constexpr (kBias)
    return {bias_at(p, min(column, p.n - 1)), bias_at(p, min(column + 1, p.n - 1))};
  return {0.0f, 0.0f};
}

/// Writes the partial sums of one split.
template <int kTileN>
__device__ void write_parts(const Problem& p, const Tile& tile, const float (&sum)[kTileN / 2],
                            const Fragment& fragment) {
#pragma unroll
  for (int i = 0; i < kTileN / 2; ++i) {
    const int row = tile.m0 + fragment.row + 8 * (i / 2 % 2);
    const int column = tile.n0 + fragment.column + 8 * (i / 4) + i % 2;
    if (row >= p.m || column >= p.n) continue;
    p.parts[(static_cast<std::int64_t>(tile.split) * p.m + row) * p.n + column] = sum[i];
  }
}

/// Writes directly from registers, for any address and output type.
template <bool kOuter, bool kBias, int kTileN, class Scales>
__device__ void write_elements(const Problem& p, const Tile& tile, const float (&sum)[kTileN / 2],
                               const Fragment& fragment, const Scales& scales,
                               const ColumnScales<kTileN>& columns) {
  const int row0 = tile.m0 + fragment.row;
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j) {
    const int column = tile.n0 + fragment.column + 8 * j;
    if (column >= p.n) break;
    const Output output{p, column + 1 < p.n};
    const float2 sb = column_scales<kOuter>(columns, fragment.column + 8 * j);
    const float2 bias = column_bias<kBias>(p, column);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row0 + 8 * r;
      if (row >= p.m) break;
      float2 c{0.0f, 0.0f};
      if (p.epilogue.beta != 0.0f) {
        c = output.load(row, column);
        c = {__fmul_rn(p.epilogue.beta, c.x), __fmul_rn(p.epilogue.beta, c.y)};
      }
      const float2 v{sum[4 * j + 2 * r], sum[4 * j + 2 * r + 1]};
      output.store(finish<kOuter, kBias>(scales, sb, bias, v, r, c), row, column);
    }
  }
}

/// Writes bf16 without C through shared memory, as many boxes at a time as the staging buffer
/// holds. Boxes are swizzled by their width, so that a warp's stores touch every bank once. Their
/// copies to d continue while the next tile is multiplied.
template <bool kOuter, bool kBias, int kTileN, class StagingT, class Scales>
__device__ void write_boxes(const Problem& p, const CUtensorMap* map_d, const Tile& tile,
                            const float (&sum)[kTileN / 2], const Fragment& fragment,
                            const Scales& scales, const ColumnScales<kTileN>& columns,
                            StagingT& staging, int barrier) {
  constexpr int kRounds = kTileN / StagingT::kColumns / StagingT::kBoxes;
  constexpr int kRowBytes = StagingT::kColumns * 2, kInBox = kRowBytes / 16;
  constexpr int kPieces = StagingT::kBoxes * kInBox;  // 16 bytes of a row each
  const bool leader = threadIdx.x % kWarpgroup == 0;
  const int row = fragment.row;
  // 16-byte piece j of row q of a box is stored at piece j ^ (q % 8), or j ^ (q / 2 % 4) if rows
  // have 64 bytes.
  const int place = row * kRowBytes + row / (128 / kRowBytes) % kInBox * 16 + fragment.column * 2;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    __nv_bfloat162 rounded[2 * kPieces];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int in_tile = fragment.column + 8 * (round * kPieces + j);
      const float2 sb = column_scales<kOuter>(columns, in_tile);
      const float2 bias = column_bias<kBias>(p, tile.n0 + in_tile);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 4 * (round * kPieces + j) + 2 * r;
        rounded[2 * j + r] = __float22bfloat162_rn(
            finish<kOuter, kBias>(scales, sb, bias, {sum[i], sum[i + 1]}, r, {0.0f, 0.0f}));
      }
    }
    if (leader) store_wait_read<0>();
    named_sync(barrier, kWarpgroup);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      unsigned char* piece = staging.boxes[j / kInBox] + (place ^ j % kInBox * 16);
      *reinterpret_cast<__nv_bfloat162*>(piece) = rounded[2 * j];
      *reinterpret_cast<__nv_bfloat162*>(piece + 8 * kRowBytes) = rounded[2 * j + 1];
    }
    async_fence();
    named_sync(barrier, kWarpgroup);
    if (leader) {
      for (int box = 0; box < StagingT::kBoxes; ++box) {
        store_box(staging.boxes[box], map_d,
                  tile.n0 + (round * StagingT::kBoxes + box) * StagingT::kColumns, tile.m0);
      }
      store_commit();
    }
  }
}

template <bool kOuter, bool kBias, int kTileN, class StagingT, class Scales>
__device__ void write_finished(const Problem& p, const CUtensorMap* map_d, const Tile& tile,
                               const float (&sum)[kTileN / 2], const Fragment& fragment,
                               const Scales& scales, const ColumnScales<kTileN>& columns,
                               StagingT& staging, int barrier) {
  if (p.boxed) {
    write_boxes<kOuter, kBias>(p, map_d, tile, sum, fragment, scales, columns, staging, barrier);
  } else {
    write_elements<kOuter, kBias>(p, tile, sum, fragment, scales, columns);
  }
}

/// Writes all row blocks of a warpgroup; the first one starts at `tile`.
template <int kTileN, int kRowBlocks, class StagingT, class Scales>
__device__ void write_tile(const Problem& p, const CUtensorMap* map_d, Tile tile,
                           const float (&sums)[kRowBlocks][kTileN / 2], const Fragment& fragment,
                           const Scales& scales, ColumnScales<kTileN>& columns, StagingT& staging) {
  const int barrier = 1 + static_cast<int>(threadIdx.x) / kWarpgroup;
  if (p.splits == 1) scales.share(columns, barrier);
  const auto write = [&]<bool kOuter, bool kBias>(const float(&sum)[kTileN / 2]) {
    write_finished<kOuter, kBias>(p, map_d, tile, sum, fragment, scales, columns, staging, barrier);
  };
#pragma unroll
  for (int block = 0; block < kRowBlocks; ++block, tile.m0 += 64) {
    if (p.splits > 1) {
      write_parts<kTileN>(p, tile, sums[block], fragment);
    } else if (scales.outer()) {
      if (p.bias != nullptr) {
        write.template operator()<true, true>(sums[block]);
      } else {
        write.template operator()<true, false>(sums[block]);
      }
    } else if (p.bias != nullptr) {
      write.template operator()<false, true>(sums[block]);
    } else {
      write.template operator()<false, false>(sums[block]);
    }
  }
}

}  // namespace fp8lab::cuda
