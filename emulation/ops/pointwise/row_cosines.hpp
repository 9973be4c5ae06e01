// Cosine similarity of the rows of two matrices.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// cosines (1, rows) f32: |a . b| / (sqrt(a . a) * sqrt(b . b)) of each row of a and b (rows,
/// cols), f32 or bf16, and +0 if the divisor is not above zero. x . y is numerics::tree_sum over
/// the products, each rounded to FP32; roots, product and quotient are rounded to nearest even, NaN
/// is the canonical one.
struct RowCosines {
  static constexpr std::string_view kName = "row_cosines";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView a, b, cosines;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("a", a));
    visit(reads("b", b));
    visit(writes("cosines", cosines));
  }
  /// Throws Error for shapes and types that do not fit.
  void check() const;
  /// Elements read.
  double work() const { return 2.0 * elements(a); }
};

}  // namespace fp8lab::ops
