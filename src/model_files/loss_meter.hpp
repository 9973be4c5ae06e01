// The difference of two tensors, added up piece by piece.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace fp8lab {

/// Sums in double precision in the order of the elements.
struct LossMeter {
  double signal = 0, noise = 0, largest_error = 0, largest_value = 0;

  void add(std::span<const float> source, std::span<const float> result) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      const double x = source[i], error = x - result[i];
      signal += x * x;
      noise += error * error;
      largest_error = std::max(largest_error, std::abs(error));
      largest_value = std::max(largest_value, std::abs(x));
    }
  }
  /// 10 log10(signal / noise): infinity for equal tensors, NaN for values that are none.
  double sqnr_db() const {
    if (noise == 0) return std::numeric_limits<double>::infinity();
    return 10 * std::log10(signal / noise);
  }
};

}  // namespace fp8lab
