// Layer norm of rows, with a weight and a bias.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// For the C columns of a row: mean = tree_sum_c(x) / C;  d = x - mean;
/// rstd = 1 / sqrt((tree_sum_c(d * d) / C) + epsilon);  y = ((d * rstd) * weight) + bias. y uses
/// the mean and the rstd as stored, in f32. x and y (T, C), y may be x; weight and bias (1, C) of
/// one type; mean and rstd (1, T) f32.
struct LayerNormForward {
  static constexpr std::string_view kName = "layernorm_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, weight, bias;
  float epsilon = 0.0f;
  TensorView y, mean, rstd;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("weight", weight));
    visit(reads("bias", bias));
    visit(writes("mean", mean));
    visit(writes("rstd", rstd));
    visit(writes("y", y));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, y); }
  /// The tensor that a following quantization reads.
  const TensorView& output() const { return y; }
};

/// For the same rows: h = (x - mean) * rstd;  g = dy * weight;  a = tree_sum_c(g) / C;
/// b = tree_sum_c(g * h) / C;  dx = rstd * ((g - a) - (h * b));
/// dweight = dweight + column_sum(dy * h);  dbias = dbias + column_sum(dy), as in
/// ops/pointwise/bias.hpp. dy, x and dx (T, C), dx may be dy; dweight and dbias (1, C) f32.
struct LayerNormBackward {
  static constexpr std::string_view kName = "layernorm_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView dy, x, weight, mean, rstd, dx, dweight, dbias;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("dy", dy));
    visit(reads("x", x));
    visit(reads("weight", weight));
    visit(reads("mean", mean));
    visit(reads("rstd", rstd));
    visit(writes("dx", dx));
    visit(updates("dweight", dweight));
    visit(updates("dbias", dbias));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(dy, x, dx); }
};

}  // namespace fp8lab::ops
