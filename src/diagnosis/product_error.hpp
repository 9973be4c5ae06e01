// Measures the error of a product against exact arithmetic.
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

/// Copies a bf16 or f32 tensor to the host, into the memory of an earlier matrix if it is as large.
void copy_to_host(Backend& backend, const TensorView& view, HostMatrix& matrix);

/// One factor of a product A B^T: a tensor (rows, K), or the transpose of a tensor (K, rows).
struct Factor {
  const HostMatrix& tensor;
  bool transpose = false;

  std::int64_t rows() const { return transpose ? tensor.cols : tensor.rows; }
  std::int64_t k() const { return transpose ? tensor.rows : tensor.cols; }
};

/// Errors of a product D for A B^T, relative to |A B^T| in the Frobenius norm: 0 if the error is 0,
/// infinite if only A B^T is 0 or an element is not finite. D' has the quantized operands of D but
/// exact sums; D'' is D' without an estimator. If D' is not known, the parts are NaN. The squares
/// of independent parts add.
struct ProductError {
  double whole = 0;        ///< |D - A B^T|
  double operands = 0;     ///< |D'' - A B^T|
  double estimator = 0;    ///< |D' - D''|
  double accumulator = 0;  ///< |D - D'|, including the rounding of D
  bool operator==(const ProductError&) const = default;
};

/// Returns A B^T in double precision, (A rows, B rows), row-major (cpu::f64_product).
std::vector<double> exact_product(const Factor& a, const Factor& b);

/// Compares `d`, D, with `product`, A B^T. `exact`, D', may be null; `straight_through`, D'', may
/// be null if there is no estimator. The bits do not depend on threads or processor.
ProductError product_error(const std::vector<double>& product, const HostMatrix& d,
                           const HostMatrix* exact = nullptr,
                           const HostMatrix* straight_through = nullptr);

/// Caches exact products by their factors: all recipes multiply the same unquantized tensors.
class ExactProducts {
 public:
  /// Returns exact_product(a, b). The factors' tensors must live as long as this object, unchanged;
  /// so long the reference is valid.
  const std::vector<double>& of(const Factor& a, const Factor& b);

 private:
  struct Known {
    Factor a, b;
    std::vector<double> product;
  };
  std::list<Known> known_;  // a list keeps references valid
};

}  // namespace fp8lab
