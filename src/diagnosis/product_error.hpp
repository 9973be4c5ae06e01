// How far a product is from exact arithmetic.
#pragma once

#include <cstdint>
#include <list>
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

/// (A rows, B rows) = A B^T in double precision, row-major (cpu::f64_product).
std::vector<double> exact_product(const Factor& a, const Factor& b);

/// D (A rows, B rows) against `product`, A B^T. `exact`, D', may be null, and `straight_through`,
/// D'', where there is no estimator. The bits depend on neither threads nor processor.
ProductError product_error(const std::vector<double>& product, const HostMatrix& d,
                           const HostMatrix* exact = nullptr,
                           const HostMatrix* straight_through = nullptr);

/// Products that are computed once for all factors of the same values: several recipes see the same
/// tensors before they are quantized.
class ExactProducts {
 public:
  /// exact_product(a, b), which lives as long as this.
  const std::vector<double>& of(const Factor& a, const Factor& b);
  /// How many were computed.
  std::size_t computed() const { return known_.size(); }

 private:
  struct Known {
    HostMatrix a, b;
    bool transpose_a = false, transpose_b = false;
    std::vector<double> product;
  };
  std::list<Known> known_;  // which moves nothing
};

}  // namespace fp8lab
