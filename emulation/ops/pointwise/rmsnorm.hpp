// Root-mean-square norm of rows, or of the heads within each row.
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

/// Heads of `cols` columns side by side in the rows of a matrix, each normalised separately
/// and counted along the rows.
struct NormHeads {
  std::int64_t count, cols;

  static NormHeads of(const TensorView& x, const TensorView& weight) {
    return {weight.cols > 0 ? x.cols / weight.cols : 1, weight.cols};
  }
  /// Return the row of the matrix and the first column of head `index`.
  FP8LAB_HD std::int64_t row(std::int64_t index) const {
    return count == 1 ? index : index / count;
  }
  FP8LAB_HD std::int64_t first(std::int64_t index) const {
    return count == 1 ? 0 : index % count * cols;
  }
};

namespace ops {

/// For C consecutive columns of a row: mean = tree_sum_c(x * x) / C;
/// rstd = 1 / sqrt(mean + epsilon);  y = (x * rstd) * weight. y uses the rstd as stored, in f32. x
/// and y (T, H * C), weight (1, C), rstd (1, T * H) with the H of a token side by side. H = 1 is
/// the norm of rows; H heads of C columns are normalised separately.
struct RmsNormForward {
  static constexpr std::string_view kName = "rmsnorm_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, weight;
  float epsilon = 0.0f;
  TensorView y, rstd;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("weight", weight));
    visit(writes("rstd", rstd));
    visit(writes("y", y));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, y); }
  /// The tensor that a following quantization reads.
  const TensorView& output() const { return y; }
};

/// For the same columns: s = tree_sum_c((dy * weight) * x);  k = ((s * rstd) * rstd) / C;
/// dx = rstd * ((dy * weight) - (x * k));  dweight = dweight + column_sum(dy * (x * rstd)), whose
/// rows are the heads. dy, x, dx (T, H * C); dweight (1, C) f32.
struct RmsNormBackward {
  static constexpr std::string_view kName = "rmsnorm_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView dy, x, weight, rstd, dx, dweight;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("dy", dy));
    visit(reads("x", x));
    visit(reads("weight", weight));
    visit(reads("rstd", rstd));
    visit(writes("dx", dx));
    visit(updates("dweight", dweight));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(dy, x, dx); }
};

}  // namespace ops
}  // namespace fp8lab
