// The scalar reference as an implementation whose steps can be exchanged one at a time: wrong
// variants differ from it in a single step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "src/validate/suite.hpp"

namespace fp8lab {

/// Which rows of the operands meet in output element (m, n).
struct OperandRows {
  std::int64_t a = 0;
  std::int64_t b = 0;
};

/// Index of a scale in an operand's (tile_rows, tile_cols) scales.
struct ScaleIndex {
  std::int64_t row = 0;
  std::int64_t col = 0;
};

/// The steps; the defaults are those of emulation/numerics.
struct ScalarSteps {
  ScalarSteps();

  std::function<std::uint32_t(const CastProblem&)> cast;
  std::function<numerics::TileScale(const numerics::ScaleRule&, const numerics::FormatSpec&,
                                    float amax)>
      scale;
  /// What is cast of x.
  std::function<float(const numerics::TileScale&, float x)> scaled;
  /// Magnitude bits that x contributes to the amax of its tile.
  std::function<std::uint32_t(float x)> magnitude;
  /// Bits of what stands for `amax`, that of `tile`, where a rule asks for standard deviations.
  std::function<std::uint32_t(std::uint32_t amax, std::span<const float> tile, float deviations)>
      deviation;
  /// Tile over which an amax is taken, for the tile of the spec.
  std::function<TileShape(const TileShape&)> amax_tile;
  std::function<std::uint32_t(const GroupProblem&)> group;
  std::function<std::uint32_t(const ElementProblem&)> element;
  /// Rows that meet in element (m, n) of an (M, N) product.
  std::function<OperandRows(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols)>
      operand_rows;
  /// Where the scale `wanted` of the second operand is read, of (rows, cols) scales.
  std::function<ScaleIndex(ScaleIndex wanted, std::int64_t rows, std::int64_t cols)> scale_index_b;
};

/// numerics::fused_group or mma_sync_fp8, by the problem's model.
std::uint32_t scalar_group(const GroupProblem& problem);

/// numerics::accumulate_element and finish_element.
std::uint32_t scalar_element(const ElementProblem& problem);

/// Every function of an implementation, composed of `steps` in plain loops.
Implementation scalar_implementation(const ScalarSteps& steps = {});

}  // namespace fp8lab
