// Finds the first difference between two records of the same steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/io/hdf5/run_log.hpp"
#include "src/train/step/execution.hpp"

namespace fp8lab {

struct StepDifference {
  std::int64_t step = -1;  ///< -1: none
  std::string what;        ///< "loss", "gradient norm", "weights", ...
};

/// Returns "loss", "gradient norm" or "weights", whichever differs first in its bits; empty if none
/// differs. Weights are compared only if both records contain their hash.
std::string difference(const StepRecord& expected, const StepRecord& actual);

/// Returns the first difference among the steps that both have. Precondition:
/// both are in ascending order.
StepDifference first_difference(const std::vector<StepRecord>& expected,
                                const std::vector<StepRecord>& actual);

/// Like the above for all steps of two executions in which operands were measured too. Also reports
/// "operand statistics", and "number of steps" if one execution has more.
StepDifference first_difference(const std::vector<StepTaken>& expected,
                                const std::vector<StepTaken>& actual);

/// Returns the record of `step`; null if there is none.
const StepRecord* find_step(const std::vector<StepRecord>& records, std::int64_t step);

}  // namespace fp8lab
