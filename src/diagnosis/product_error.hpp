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

/// Products in double precision, by the truth path, a block of the result at a time.
class ExactProduct {
 public:
  explicit ExactProduct(int threads);

  /// |D - A B^T| / |A B^T| in the Frobenius norm; 0 where both are zero, infinite where the product
  /// alone is, or an element of D is not finite.
  double relative_error(const Factor& a, const Factor& b, const HostMatrix& d);

  /// A (rows_a, k) B (rows_b, k)^T, all row-major.
  std::vector<double> multiply(std::vector<double>& a, std::int64_t rows_a, std::vector<double>& b,
                               std::int64_t rows_b, std::int64_t k);

 private:
  std::unique_ptr<Backend> truth_;
};

}  // namespace fp8lab
