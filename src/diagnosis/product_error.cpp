#include "src/diagnosis/product_error.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "emulation/reference/truth_backend.hpp"
#include "src/model/parameters.hpp"

namespace fp8lab {
namespace {

/// Elements of a block of rows of an operand, in double precision.
constexpr std::int64_t kBlockElements = 1 << 23;
constexpr std::int64_t kMostRows = 1024;

/// Rows [first, first + count) of a factor, each contiguous along K.
std::vector<double> rows_of(const Factor& factor, std::int64_t first, std::int64_t count) {
  const HostMatrix& tensor = factor.tensor;
  const std::int64_t k = factor.k();
  std::vector<double> rows(static_cast<std::size_t>(count * k));
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t at =
          factor.transpose ? i * tensor.cols + first + r : (first + r) * tensor.cols + i;
      rows[static_cast<std::size_t>(r * k + i)] = tensor.values[static_cast<std::size_t>(at)];
    }
  }
  return rows;
}

double square(double value) { return value * value; }

/// The root of a sum of squares over another.
double relative(double errors, double squares) {
  if (errors == 0) return 0;
  const double ratio = std::sqrt(errors / squares);
  return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
}

QuantizedOperand as_operand(std::vector<double>& values, std::int64_t rows, std::int64_t k) {
  QuantizedOperand operand = QuantizedOperand::without_memory({}, rows, k);
  operand.codes = {values.data(), DType::f64, rows, k, k};
  return operand;
}

}  // namespace

HostMatrix host_matrix(Backend& backend, const TensorView& view) {
  HostMatrix matrix{view.rows, view.cols, {}};
  matrix.values.resize(static_cast<std::size_t>(view.size()));
  download_floats(backend, view, matrix.values);
  return matrix;
}

ExactProduct::ExactProduct(int threads) : truth_(reference::make_truth_backend(threads)) {}

std::vector<double> ExactProduct::multiply(std::vector<double>& a, std::int64_t rows_a,
                                           std::vector<double>& b, std::int64_t rows_b,
                                           std::int64_t k) {
  const GemmSpec spec;
  const QuantizedOperand first = as_operand(a, rows_a, k), second = as_operand(b, rows_b, k);
  std::vector<double> d(static_cast<std::size_t>(rows_a * rows_b));
  truth_->run(
      ops::Gemm{spec, first, second, {}, false, {d.data(), DType::f64, rows_a, rows_b, rows_b}});
  return d;
}

ProductError ExactProduct::error(const Factor& a, const Factor& b, const HostMatrix& d,
                                 const HostMatrix* exact, const HostMatrix* straight_through) {
  const std::int64_t k = a.k();
  FP8LAB_ASSERT(b.k() == k && d.rows == a.rows() && d.cols == b.rows());
  FP8LAB_ASSERT(exact == nullptr || (exact->rows == d.rows && exact->cols == d.cols));
  const std::int64_t block = std::clamp<std::int64_t>(kBlockElements / k, 1, kMostRows);
  const HostMatrix* const straight = straight_through == nullptr ? exact : straight_through;
  FP8LAB_ASSERT(straight == exact || (straight->rows == d.rows && straight->cols == d.cols));
  double whole = 0, operands = 0, estimator = 0, accumulator = 0, squares = 0;
  for (std::int64_t m = 0; m < d.rows; m += block) {
    const std::int64_t rows = std::min(block, d.rows - m);
    std::vector<double> left = rows_of(a, m, rows);
    for (std::int64_t n = 0; n < d.cols; n += block) {
      const std::int64_t cols = std::min(block, d.cols - n);
      std::vector<double> right = rows_of(b, n, cols);
      const std::vector<double> product = multiply(left, rows, right, cols, k);
      for (std::int64_t i = 0; i < rows * cols; ++i) {
        const double value = product[static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>((m + i / cols) * d.cols + n + i % cols);
        whole += square(d.values[at] - value);
        squares += square(value);
        if (exact == nullptr) continue;
        operands += square(straight->values[at] - value);
        estimator += square(static_cast<double>(exact->values[at]) - straight->values[at]);
        accumulator += square(static_cast<double>(d.values[at]) - exact->values[at]);
      }
    }
  }
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  if (exact == nullptr) return {relative(whole, squares), kUnknown, kUnknown, kUnknown};
  return {relative(whole, squares), relative(operands, squares), relative(estimator, squares),
          relative(accumulator, squares)};
}

}  // namespace fp8lab
