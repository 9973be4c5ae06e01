// Where two records of the same steps part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/io/run_log.hpp"
#include "src/train/execution.hpp"

namespace fp8lab {

struct StepDifference {
  std::int64_t step = -1;  ///< -1: none
  std::string what;        ///< "loss", "gradient norm", "weights", ...
};

/// "loss", "gradient norm" or "weights", the first whose bits differ; empty where none do. Weights
/// are compared where both were hashed.
std::string difference(const StepRecord& expected, const StepRecord& actual);

/// The first of the steps that both have at which they differ. Both ascend.
StepDifference first_difference(const std::vector<StepRecord>& expected,
                                const std::vector<StepRecord>& actual);

/// The same of all steps of two executions, in which operands were measured too: also "operand
/// statistics", and "number of steps" where one of them has more.
StepDifference first_difference(const std::vector<StepTaken>& expected,
                                const std::vector<StepTaken>& actual);

/// The record of `step`; null where there is none.
const StepRecord* find_step(const std::vector<StepRecord>& records, std::int64_t step);

}  // namespace fp8lab
