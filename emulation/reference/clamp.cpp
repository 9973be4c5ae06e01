#include "emulation/reference/clamp.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/transform.hpp"

namespace fp8lab::reference {
namespace {

using numerics::ClampBounds;

float element(const TensorView& view, std::int64_t r, std::int64_t c) {
  return view.dtype == DType::f32 ? view.row<float>(r)[c]
                                  : numerics::from_bf16(view.row<std::uint16_t>(r)[c]);
}

/// Returns an integer that sorts as the float does: all bits of a negative number
/// but the sign are inverted.
std::int32_t order_of(float value) {
  const auto bits = static_cast<std::int32_t>(numerics::float_bits(value));
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}
float number_of(std::int32_t order) {
  return numerics::bits_float(static_cast<std::uint32_t>(order < 0 ? order ^ 0x7FFFFFFF : order));
}

/// An operand's tensor before it was quantized.
struct Original {
  const QuantizedOperand& operand;
  const TensorView& source;
  bool transpose;

  float at(std::int64_t row, std::int64_t k) const {
    return transpose ? element(source, k, row) : element(source, row, k);
  }
};

/// Returns the (K, rows) matrix of an operand's original values.
FloatMatrix k_major(const Original& original) {
  FloatMatrix values(original.operand.k, original.operand.rows);
  const TensorView view = values.view();
#pragma omp parallel for schedule(static)
  for (std::int64_t k = 0; k < view.rows; ++k) {
    for (std::int64_t r = 0; r < view.cols; ++r) view.row<float>(k)[r] = original.at(r, k);
  }
  return values;
}

/// As above, of the values of the operand's codes.
FloatMatrix k_major(const QuantizedOperand& operand) {
  FloatMatrix values(operand.k, operand.rows);
  decode_operand(operand, true, values.view());
  return values;
}

/// An element of the sparse residual of one row.
struct Outlier {
  std::int64_t k;
  float residual;
};

std::vector<Outlier> outliers_of(const Original& clamped, const ClampBounds& bounds,
                                 std::int64_t row) {
  std::vector<Outlier> found;
  for (std::int64_t k = 0; k < clamped.operand.k; ++k) {
    const float residual = numerics::clamp_residual(bounds, clamped.at(row, k));
    if (residual != 0.0f) found.push_back({k, residual});
  }
  return found;
}

void add_to(const TensorView& d, std::int64_t m, std::int64_t n, float term) {
  if (d.dtype == DType::f32) {
    float& sum = d.row<float>(m)[n];
    sum = numerics::canonical_nan(sum + term);
  } else {
    std::uint16_t& sum = d.row<std::uint16_t>(m)[n];
    sum = numerics::to_bf16(numerics::from_bf16(sum) + term);
  }
}

}  // namespace

ClampBounds clamp_bounds(const TensorView& source, double quantile) {
  std::vector<std::int32_t> order;
  order.reserve(static_cast<std::size_t>(source.size()));
  for (std::int64_t r = 0; r < source.rows; ++r) {
    for (std::int64_t c = 0; c < source.cols; ++c) {
      const float value = element(source, r, c);
      if (!std::isnan(value)) order.push_back(order_of(value));
    }
  }
  if (order.empty()) return {};
  const auto count = static_cast<std::int64_t>(order.size());
  const double share = std::floor((1.0 - quantile) * static_cast<double>(count) + 0.5);
  const std::int64_t cut = std::min(static_cast<std::int64_t>(share), (count - 1) / 2);
  const auto lower = order.begin() + cut, upper = order.end() - 1 - cut;
  std::nth_element(order.begin(), lower, order.end());
  const float least = number_of(*lower);
  std::nth_element(lower, upper, order.end());
  return {least, number_of(*upper)};
}

ClampBounds clamp_bounds_of(const QuantizedOperand& operand) {
  check_transform(operand, operand.rows, operand.k);
  const float* const bounds = operand.clamp_bounds.row<float>(0);
  return {bounds[0], bounds[1]};
}

void compensate(const ops::Compensate& op) {
  op.check();
  const Original left{op.a, op.a_source, op.transpose_a}, right{op.b, op.b_source, op.transpose_b};
  const bool is_left = op.is_left();
  const Original& own = is_left ? left : right;
  const Original& other = is_left ? right : left;
  const ClampBounds bounds = clamp_bounds_of(own.operand);
  FloatMatrix factors = op.takes_codes() ? k_major(other.operand) : k_major(other);
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t row = 0; row < own.operand.rows; ++row) {
    const std::vector<Outlier> outliers = outliers_of(own, bounds, row);
    if (outliers.empty()) continue;
    std::vector<float> sums(static_cast<std::size_t>(other.operand.rows), 0.0f);
    for (const Outlier& outlier : outliers) {
      const float* const factor = factors.view().row<float>(outlier.k);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += outlier.residual * factor[i];
    }
    for (std::int64_t i = 0; i < other.operand.rows; ++i) {
      const float sum = sums[static_cast<std::size_t>(i)];
      is_left ? add_to(op.d, row, i, sum) : add_to(op.d, i, row, sum);
    }
  }
}

}  // namespace fp8lab::reference
