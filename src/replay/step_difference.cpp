#include "src/replay/step_difference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace fp8lab {

std::string difference(const StepRecord& expected, const StepRecord& actual) {
  // NaNs compare equal: the bits of a NaN depend on the operation that made it.
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

StepDifference first_difference(const std::vector<StepTaken>& expected,
                                const std::vector<StepTaken>& actual) {
  const auto same_statistics = [](const StepTaken& a, const StepTaken& b) {
    return a.statistics.size() == b.statistics.size() &&
           std::memcmp(a.statistics.data(), b.statistics.data(),
                       a.statistics.size() * sizeof(OperandStatistics)) == 0;
  };
  const std::size_t both = std::min(expected.size(), actual.size());
  for (std::size_t i = 0; i < both; ++i) {
    std::string what = difference(expected[i].record, actual[i].record);
    if (what.empty() && !same_statistics(expected[i], actual[i])) what = "operand statistics";
    if (!what.empty()) return {expected[i].record.step, what};
  }
  if (expected.size() == actual.size()) return {};
  return {static_cast<std::int64_t>(both) + 1, "number of steps"};
}

const StepRecord* find_step(const std::vector<StepRecord>& records, std::int64_t step) {
  const auto found =
      std::lower_bound(records.begin(), records.end(), step,
                       [](const StepRecord& record, std::int64_t s) { return record.step < s; });
  return found == records.end() || found->step != step ? nullptr : &*found;
}

}  // namespace fp8lab
