// Finds the first differing bit of two executions of a run.
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

/// The first element, in row-major order, whose bits differ between two matrices of the same shape.
struct ElementDifference {
  DType dtype = DType::f32;
  std::int64_t row = 0, col = 0;
  std::uint64_t bits_a = 0, bits_b = 0;
  double value_a = 0, value_b = 0;  ///< for codes: decoded, without their scale
  std::int64_t count = 0;           ///< number of elements that differ
  std::int64_t of = 0;              ///< number of elements in total
};

/// The quantizer's tile that contains an element of codes, or the tile of a scale.
struct TileOfElement {
  std::int64_t row = 0, col = 0;    ///< position in the grid of tiles
  std::int64_t rows = 0, cols = 0;  ///< size of a tile; 0: the whole extent
};

struct LocatedDifference {
  enum class Where : std::uint8_t {
    nowhere,
    state,      ///< the state before the step: weights, moments, scalars, delayed scales, smoothing
                ///< factors
    order,      ///< the sequences of operations differ
    operation,  ///< an output of an operation
  };
  Where where = Where::nowhere;
  std::int64_t step = 0;
  std::string state;                 ///< Where::state: "weight/layers.0.mlp.down.weight"
  std::optional<TracedOutput> a, b;  ///< output of each side; nothing: no further outputs
  std::optional<ElementDifference> element;
  std::optional<TileOfElement> tile;
  std::optional<GemmElement> gemm;  ///< set if the element is in the result of a GEMM
};

/// Two sides executed again, from a common start up to a step.
struct ExecutedAgain {
  LocatedDifference difference;
  std::vector<StepRecord> a, b;  ///< the steps that were executed
};

/// Executes one side after the other from `start` up to `step`. Compares the complete state before
/// every step, then the operations of the first step whose resulting state differs, or of the last
/// step. Executes the operation that was found once more to compare its elements. `say` receives
/// the current phase; "": none.
ExecutedAgain locate_difference(const ReplaySource& a, const ReplaySource& b,
                                const StartPoint& start, std::int64_t step,
                                const Execution::Say& say = {});

}  // namespace fp8lab
