// The product of operands that keep only some of their errors, from its terms.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// d (rows, cols), bf16 or f32, = partial + (emulated - exact) + bias + d: the terms, in this
/// order, are added in FP64, each addition rounded, and the sum is rounded once to nearest even to
/// d's type; NaN canonical. All three products are (rows, cols) f32. `partial` is the exact product
/// of the partial operands, `exact` and `emulated` are products of the quantized ones; both empty:
/// their difference is left out, as the accumulator makes no error. `bias` (1, cols), bf16 or f32,
/// or empty. The former d is added only if `accumulate`.
struct JoinProducts {
  static constexpr std::string_view kName = "join_products";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView partial;
  TensorView emulated{};
  TensorView exact{};
  TensorView bias{};
  bool accumulate = false;
  TensorView d;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("partial product", partial));
    visit(reads("emulated product", emulated));
    visit(reads("exact product", exact));
    visit(reads("bias", bias));
    visit(accumulate ? updates("d", d) : writes("d", d));
  }
  /// Throws Error for shapes and types that do not fit.
  void check() const;
  /// Elements read and written.
  double work() const { return elements(partial, emulated, exact, d); }
};

}  // namespace fp8lab::ops
