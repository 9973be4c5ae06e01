#include "src/diagnosis/product_error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "emulation/base/error.hpp"
#include "emulation/cpu/gemm/f64_product.hpp"
#include "src/model/weights/parameters.hpp"

namespace fp8lab {
namespace {

/// Returns the factor's values (rows, K); `memory` holds the transpose if one is needed.
const float* values_of(const Factor& factor, std::vector<float>& memory) {
  const HostMatrix& tensor = factor.tensor;
  if (!factor.transpose) return tensor.values.data();
  constexpr std::int64_t kBlock = 64;  // rows whose cache lines stay cached
  memory.resize(tensor.values.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < tensor.rows; first += kBlock) {
    const std::int64_t end = std::min(first + kBlock, tensor.rows);
    for (std::int64_t column = 0; column < tensor.cols; ++column) {
      for (std::int64_t row = first; row < end; ++row) {
        memory[static_cast<std::size_t>(column * tensor.rows + row)] =
            tensor.values[static_cast<std::size_t>(row * tensor.cols + column)];
      }
    }
  }
  return memory.data();
}

double square(double value) { return value * value; }

/// Returns sqrt(errors / squares), with the special cases of ProductError.
double relative(double errors, double squares) {
  if (errors == 0) return 0;
  const double ratio = std::sqrt(errors / squares);
  return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
}

/// Sums of squares.
struct Squares {
  double whole = 0, operands = 0, estimator = 0, accumulator = 0, product = 0;
};

/// Returns the sums of one row.
Squares squares_of(const double* product, const float* d, const float* exact, const float* straight,
                   std::int64_t columns) {
  Squares sums;
  for (std::int64_t i = 0; i < columns; ++i) {
    sums.whole += square(d[i] - product[i]);
    sums.product += square(product[i]);
    if (exact == nullptr) continue;
    sums.operands += square(straight[i] - product[i]);
    sums.estimator += square(static_cast<double>(exact[i]) - straight[i]);
    sums.accumulator += square(static_cast<double>(d[i]) - exact[i]);
  }
  return sums;
}

bool is_same(const Factor& a, const Factor& b) {
  return &a.tensor == &b.tensor && a.transpose == b.transpose;
}

}  // namespace

void copy_to_host(Backend& backend, const TensorView& view, HostMatrix& matrix) {
  matrix.rows = view.rows;
  matrix.cols = view.cols;
  matrix.values.resize(static_cast<std::size_t>(view.size()));
  download_floats(backend, view, matrix.values);
}

std::vector<double> exact_product(const Factor& a, const Factor& b) {
  FP8LAB_ASSERT(a.k() == b.k());
  std::vector<float> left, right;
  std::vector<double> product(static_cast<std::size_t>(a.rows() * b.rows()));
  cpu::f64_product(values_of(a, left), a.rows(), values_of(b, right), b.rows(), a.k(),
                   product.data());
  return product;
}

ProductError product_error(const std::vector<double>& product, const HostMatrix& d,
                           const HostMatrix* exact, const HostMatrix* straight_through) {
  const HostMatrix* const straight = straight_through == nullptr ? exact : straight_through;
  for (const HostMatrix* const matrix : {&d, exact, straight}) {
    if (matrix == nullptr) continue;
    FP8LAB_ASSERT(matrix->rows == d.rows && matrix->cols == d.cols);
    FP8LAB_ASSERT(matrix->values.size() == product.size());
  }
  std::vector<Squares> rows(static_cast<std::size_t>(d.rows));
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < d.rows; ++row) {
    const std::int64_t at = row * d.cols;
    rows[static_cast<std::size_t>(row)] =
        squares_of(product.data() + at, d.values.data() + at,
                   exact == nullptr ? nullptr : exact->values.data() + at,
                   exact == nullptr ? nullptr : straight->values.data() + at, d.cols);
  }
  Squares all;
  for (const Squares& row : rows) {
    all.whole += row.whole;
    all.operands += row.operands;
    all.estimator += row.estimator;
    all.accumulator += row.accumulator;
    all.product += row.product;
  }
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  if (exact == nullptr) return {relative(all.whole, all.product), kUnknown, kUnknown, kUnknown};
  return {relative(all.whole, all.product), relative(all.operands, all.product),
          relative(all.estimator, all.product), relative(all.accumulator, all.product)};
}

const std::vector<double>& ExactProducts::of(const Factor& a, const Factor& b) {
  for (const Known& known : known_) {
    if (is_same(known.a, a) && is_same(known.b, b)) return known.product;
  }
  known_.push_back({a, b, exact_product(a, b)});
  return known_.back().product;
}

}  // namespace fp8lab
