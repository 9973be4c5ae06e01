// Derivatives of functions in double precision by central differences.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

namespace fp8lab::test {

/// Derivative of f in its argument x[i] by central differences.
inline double central_difference(std::vector<double> x, std::size_t i,
                                 const std::function<double(const std::vector<double>&)>& f) {
  const double step = 1e-5;
  const double middle = x[i];
  x[i] = middle + step;
  const double above = f(x);
  x[i] = middle - step;
  return (above - f(x)) / (2.0 * step);
}

/// Central differences with step h err by h^2 f''' / 6 (below 1e-9 here: arguments and derivatives
/// are of order 1) and by cancellation, 2^-52 |f| / h (below 1e-9).
inline bool is_derivative(double analytic, double difference) {
  return std::fabs(analytic - difference) < 1e-7 * (1.0 + std::fabs(difference));
}

}  // namespace fp8lab::test
