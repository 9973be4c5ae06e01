// The scalar reference as an implementation whose steps can be replaced one at a time: each wrong
// variant differs from it in a single step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "src/validate/suite.hpp"

namespace fp8lab {

/// The rows of the operands that form output element (m, n).
struct OperandRows {
  std::int64_t a = 0;
  std::int64_t b = 0;
};

/// Index of a scale among an operand's (tile_rows, tile_cols) scales.
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
  /// Returns the value of x that is cast, after scaling.
  std::function<float(const numerics::TileScale&, float x)> scaled;
  /// Returns the magnitude bits that x contributes to the amax of its tile.
  std::function<std::uint32_t(float x)> magnitude;
  /// Returns the bits that replace `amax`, the amax of `tile`, if a rule uses standard deviations.
  std::function<std::uint32_t(std::uint32_t amax, std::span<const float> tile, float deviations)>
      deviation;
  /// Returns the tile over which an amax is taken, for the tile of the spec.
  std::function<TileShape(const TileShape&)> amax_tile;
  std::function<std::uint32_t(const GroupProblem&)> group;
  std::function<std::uint32_t(const ElementProblem&)> element;
  /// Returns the rows that form element (m, n) of an (M, N) product.
  std::function<OperandRows(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols)>
      operand_rows;
  /// Returns where the scale `wanted` of the second operand is read among (rows, cols) scales.
  std::function<ScaleIndex(ScaleIndex wanted, std::int64_t rows, std::int64_t cols)> scale_index_b;
};

/// Calls numerics::fused_group or mma_sync_fp8, depending on the problem's model.
std::uint32_t scalar_group(const GroupProblem& problem);

/// Calls numerics::accumulate_element and finish_element.
std::uint32_t scalar_element(const ElementProblem& problem);

/// Returns an implementation of every function, composed of `steps` in plain loops.
Implementation scalar_implementation(const ScalarSteps& steps = {});

}  // namespace fp8lab
