// Summarizes the SQNR of several operands in one line; undefined and infinite values
// are left out of the mean.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "emulation/ops/quantize/operand_statistics.hpp"

namespace fp8lab::cli {

/// Returns true if the operand has no error. An operand without a nonzero element
/// is undefined, not exact.
inline bool is_exact(const OperandStatistics& statistics) {
  return statistics.sqnr_db == std::numeric_limits<double>::infinity();
}

class SqnrSummary {
 public:
  void add(const OperandStatistics& statistics, const std::string& name) {
    const double decibels = statistics.sqnr_db;
    if (std::isnan(decibels)) {
      ++undefined_;
    } else if (is_exact(statistics)) {
      ++exact_;
    } else {
      if (std::isfinite(decibels)) {
        sum_ += decibels;
        ++finite_;
      }
      if (lowest_name_.empty() || decibels < lowest_) {
        lowest_ = decibels;
        lowest_name_ = name;
      }
    }
  }

  /// Returns the mean over the operands with a finite SQNR; NaN if there are none.
  double mean() const {
    if (finite_ == 0) return std::numeric_limits<double>::quiet_NaN();
    return sum_ / static_cast<double>(finite_);
  }
  /// Returns the lowest SQNR; NaN if no operand has an error.
  double lowest() const { return lowest_; }
  const std::string& lowest_name() const { return lowest_name_; }
  std::int64_t exact() const { return exact_; }
  std::int64_t undefined() const { return undefined_; }

  /// Describes the operands left out of the mean: ", 2 exact, 1 all zero", or nothing.
  std::string left_out() const {
    std::string text;
    if (exact_ > 0) text += fmt::format(", {} exact", exact_);
    if (undefined_ > 0) text += fmt::format(", {} without a nonzero finite element", undefined_);
    return text;
  }

 private:
  double sum_ = 0, lowest_ = std::numeric_limits<double>::quiet_NaN();
  std::string lowest_name_;
  std::int64_t finite_ = 0, exact_ = 0, undefined_ = 0;
};

/// Formats decibels for a column; "-": undefined, "exact": no error.
inline std::string decibel_text(double decibels, int digits) {
  if (std::isnan(decibels)) return "-";
  if (decibels == std::numeric_limits<double>::infinity()) return "exact";
  return fmt::format("{:.{}f}", decibels, digits);
}

}  // namespace fp8lab::cli
