// How far a product is from exact arithmetic.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

/// A matrix on the host, row-major.
struct HostMatrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<float> values;
};

/// Copies a bf16 or f32 tensor.
HostMatrix host_matrix(Backend& backend, const TensorView& view);

/// One side of a product A B^T: a tensor (rows, K), or with `transpose` its transpose.
struct Factor {
  const HostMatrix& tensor;
  bool transpose = false;

  std::int64_t rows() const { return transpose ? tensor.cols : tensor.rows; }
  std::int64_t k() const { return transpose ? tensor.rows : tensor.cols; }
};

/// Errors of a product D for A B^T, relative to |A B^T| in the Frobenius norm: 0 where both are
/// zero, infinite where A B^T alone is, or an element is not finite. D' is the product of A and B
/// as they were quantized for D, summed exactly, and D'' the same without an estimator; without D'
/// the parts are NaN. Independent parts add in squares.
struct ProductError {
  double whole = 0;        ///< |D - A B^T|
  double operands = 0;     ///< |D'' - A B^T|
  double estimator = 0;    ///< |D' - D''|
  double accumulator = 0;  ///< |D - D'|, with the rounding of D itself
  bool operator==(const ProductError&) const = default;
};

/// Products in double precision, by the truth path, a block of the result at a time.
class ExactProduct {
 public:
  explicit ExactProduct(int threads);

  /// `exact`, D', may be null, and `straight_through`, D'', where there is no estimator.
  ProductError error(const Factor& a, const Factor& b, const HostMatrix& d,
                     const HostMatrix* exact = nullptr,
                     const HostMatrix* straight_through = nullptr);

  /// A (rows_a, k) B (rows_b, k)^T, all row-major.
  std::vector<double> multiply(std::vector<double>& a, std::int64_t rows_a, std::vector<double>& b,
                               std::int64_t rows_b, std::int64_t k);

 private:
  std::unique_ptr<Backend> truth_;
};

}  // namespace fp8lab
