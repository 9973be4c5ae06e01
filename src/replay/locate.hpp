// The first wrong bit: where two executions of a run part.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/replay/gemm_element.hpp"
#include "src/replay/operation_trace.hpp"
#include "src/replay/replay.hpp"

namespace fp8lab {

/// The first element, row after row, that two matrices of one shape hold with different bits.
struct ElementDifference {
  DType dtype = DType::f32;
  std::int64_t row = 0, col = 0;
  std::uint64_t bits_a = 0, bits_b = 0;
  double value_a = 0, value_b = 0;  ///< codes: decoded, without their scale
  std::int64_t count = 0;           ///< elements that differ
  std::int64_t of = 0;              ///< elements
};

/// The quantizer's tile of an element of codes, or of a scale.
struct TileOfElement {
  std::int64_t row = 0, col = 0;    ///< of the grid of tiles
  std::int64_t rows = 0, cols = 0;  ///< of a tile; 0: the whole extent
};

struct LocatedDifference {
  enum class Where : std::uint8_t {
    nowhere,
    state,      ///< before the step: weights, moments, scalars, delayed scales, smoothing factors
    order,      ///< the operations themselves are not the same
    operation,  ///< an output of one
  };
  Where where = Where::nowhere;
  std::int64_t step = 0;
  std::string state;                 ///< Where::state: "weight/layers.0.mlp.down.weight"
  std::optional<TracedOutput> a, b;  ///< of each side; nothing where a side has no more of them
  std::optional<ElementDifference> element;
  std::optional<TileOfElement> tile;
  std::optional<GemmElement> gemm;  ///< of an element of a GEMM's result
};

/// Two sides executed again, from a common start up to a step.
struct ExecutedAgain {
  LocatedDifference difference;
  std::vector<StepRecord> a, b;  ///< the steps that were executed
};

/// Executes both sides from `start` up to `step`, first one, then the other, and compares all that
/// a step leaves before every step, then the operations of the first step that leaves something
/// else, or of the last one. What is found is executed once more to see its elements. `say` is told
/// what is under way; "": nothing.
ExecutedAgain locate_difference(const ReplaySource& a, const ReplaySource& b,
                                const StartPoint& start, std::int64_t step,
                                const Execution::Say& say = {});

}  // namespace fp8lab
