#include "src/replay/step_difference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fp8lab {

std::string difference(const StepRecord& expected, const StepRecord& actual) {
  // The bits of a NaN are those of whoever made it.
  const auto differ = [](double a, double b) {
    return !(std::isnan(a) && std::isnan(b)) &&
           std::bit_cast<std::uint64_t>(a) != std::bit_cast<std::uint64_t>(b);
  };
  if (differ(expected.loss, actual.loss)) return "loss";
  if (differ(expected.grad_norm, actual.grad_norm)) return "gradient norm";
  const bool hashed = expected.weight_hash != 0 && actual.weight_hash != 0;
  return hashed && expected.weight_hash != actual.weight_hash ? "weights" : "";
}

StepDifference first_difference(const std::vector<StepRecord>& expected,
                                const std::vector<StepRecord>& actual) {
  for (const StepRecord& record : expected) {
    const StepRecord* const other = find_step(actual, record.step);
    if (other == nullptr) continue;
    if (const std::string what = difference(record, *other); !what.empty()) {
      return {record.step, what};
    }
  }
  return {};
}

const StepRecord* find_step(const std::vector<StepRecord>& records, std::int64_t step) {
  const auto found =
      std::lower_bound(records.begin(), records.end(), step,
                       [](const StepRecord& record, std::int64_t s) { return record.step < s; });
  return found == records.end() || found->step != step ? nullptr : &*found;
}

}  // namespace fp8lab
