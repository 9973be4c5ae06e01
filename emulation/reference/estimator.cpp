#include "emulation/reference/estimator.hpp"

#include <algorithm>

#include "emulation/numerics/codec.hpp"
#include "emulation/reference/transform.hpp"

namespace fp8lab::reference {
namespace {

/// Returns the number of elements that share a scale, down or across.
std::int64_t extent(std::int64_t tile, std::int64_t whole) {
  return tile == 0 ? whole : std::min(tile, whole);
}

/// Accesses the source and d as FP32, row by row.
class Row {
 public:
  Row(const TensorView& view, std::int64_t row) : view_(view), row_(row) {}
  float load(std::int64_t col) const {
    return view_.dtype == DType::f32 ? view_.row<float>(row_)[col]
                                     : numerics::from_bf16(view_.row<std::uint16_t>(row_)[col]);
  }
  void store(std::int64_t col, float value) const {
    if (view_.dtype == DType::f32) {
      view_.row<float>(row_)[col] = numerics::canonical_nan(value);
    } else {
      view_.row<std::uint16_t>(row_)[col] = numerics::to_bf16(value);
    }
  }

 private:
  const TensorView& view_;
  std::int64_t row_;
};

void multiply(const ops::EstimatorFactor& op, const TensorView& values) {
  const QuantSpec& spec = op.operand.spec;
  const TileShape tile = spec.scale_tile();
  const std::int64_t height = extent(tile.rows, values.rows);
  const std::int64_t width = extent(tile.cols, values.cols);
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < values.rows; ++r) {
    const Row value(values, r), gradient(op.d, r);
    const float* const scales =
        spec.has_scale() ? op.operand.scales.row<float>(r / height) : nullptr;
    for (std::int64_t c = 0; c < values.cols; ++c) {
      const float scale = scales != nullptr ? scales[c / width] : 1.0f;
      gradient.store(c, gradient.load(c) * numerics::estimator_factor(spec.estimator, spec.format,
                                                                      value.load(c) / scale));
    }
  }
}

}  // namespace

void estimator_factor(const ops::EstimatorFactor& op) {
  op.check();
  if (!op.operand.spec.transform) return multiply(op, op.source);
  FloatMatrix values = transformed(op.source, false, op.operand);
  multiply(op, values.view());
}

}  // namespace fp8lab::reference
