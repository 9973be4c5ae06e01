// Inputs and outputs of the statistics kernels for one operand.
#pragma once

#include <cstdint>
#include <type_traits>

#include "emulation/ops/quantize/describe_statistics.hpp"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/quantize/operand_decoder.cuh"
#include "kernels/quantize/operand_lines.cuh"
#include "kernels/quantize/quantize_scales.hpp"

namespace fp8lab::cuda {

using Count = unsigned long long;  // the type of atomicAdd

/// Results that do not depend on the order of accumulation. Precondition: zeros at first. Scales
/// are stored as keys that only grow.
struct Tally {
  Count nonfinite, underflow, saturated, zero_tiles, hash;
  Count exponents[kExponentBins];
  std::uint32_t largest_scale, smallest_scale;  ///< keys; 0: none seen
  std::uint32_t finished;                       ///< blocks of the last kernel that are done
};

inline constexpr int kStatisticsSums = 6;
static_assert(sizeof(StatisticsTotals) == kStatisticsSums * sizeof(double));
inline constexpr int kPanelWarps = StatisticsOrder::kPanelRows / StatisticsOrder::kLaneRows;
inline constexpr int kPanelThreads = kPanelWarps * kWarpSize;
static_assert(StatisticsOrder::kPanelCols == kWarpSize * kGroup);
static_assert(StatisticsOrder::kLaneCols == kGroup && StatisticsOrder::kLaneRows % kGroup == 0);

/// How an operand's values y are stored.
enum class Stored {
  e4m3,       ///< codes of e4m3fn, by instruction
  codes,      ///< other codes, which a table decodes
  codebooks,  ///< codes whose meaning depends on the tile
  bf16,
  f32,
};
template <Stored kStored>
using StoredBits =
    std::conditional_t<kStored == Stored::bf16, std::uint16_t,
                       std::conditional_t<kStored == Stored::f32, float, std::uint8_t>>;

/// An operand as the kernels read it, in the orientation of the source.
struct Compared {
  std::int64_t rows, cols;  ///< of the source
  bool transpose;           ///< the operand is (cols, rows)
  bool turned;              ///< codes lie in columns of the source
  std::int64_t hash_words;  ///< words in the hash of one of its vectors
  TileGrid grid;
  Decoder decoder;
  double qmax;  ///< largest code of a tile; infinite if nothing saturates, in expanded tiles
  const float* compensation;  ///< bounds of a compensated clamp; nullptr: none

  __device__ float value(std::int64_t row, std::int64_t col) const {
    return transpose ? decoder(col, row) : decoder(row, col);
  }
  /// Distance in memory between the scales of vertically and of horizontally adjacent tiles.
  __device__ std::int64_t scale_row_step() const { return transpose ? 1 : decoder.scale_stride; }
  __device__ std::int64_t scale_col_step() const { return transpose ? decoder.scale_stride : 1; }
  /// Returns the FP32 bits of the largest magnitude that does not count as saturated.
  __device__ std::uint32_t limit(float scale) const {
    return numerics::float_bits(saturation_limit(qmax, scale));
  }
};

/// Where the blocks of a source write their results. Precondition: `channel_amax` and
/// `nonzero` hold zeros at first.
struct PanelResults {
  StatisticsTotals* totals;     ///< (rows of panels, panels across)
  std::uint32_t* channel_amax;  ///< FP32 bits, by column
  std::uint8_t* nonzero;        ///< 1: the tile is not all zeros
  Tally* tally;
};

/// An operand in the arguments of a kernel.
template <class Bits>
struct PanelOperand {
  Lines<Bits> codes;
  Compared compared;
  PanelResults results;
};

/// The first element of a thread.
struct PanelPlace {
  unsigned panel;
  std::int64_t first_col, row, col;

  __device__ PanelPlace(unsigned index, unsigned panels_across)
      : panel(index),
        first_col(std::int64_t{index % panels_across} * StatisticsOrder::kPanelCols),
        row(std::int64_t{index / panels_across} * StatisticsOrder::kPanelRows +
            warp_id() * StatisticsOrder::kLaneRows),
        col(first_col + lane_id() * kGroup) {}
};

}  // namespace fp8lab::cuda
