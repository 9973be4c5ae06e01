// The orthogonalized momentum of Muon (Jordan et al. 2024,
// https://kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv:2502.16982, algorithm 1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "emulation/base/tensor_view.hpp"
#include "emulation/numerics/host_device.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/gemm/gemm.hpp"
#include "emulation/ops/optimizer/adamw.hpp"
#include "emulation/ops/pointwise/copy.hpp"
#include "emulation/ops/step_scalars.hpp"
#include "emulation/ops/tensors.hpp"
#include "emulation/spec/update_spec.hpp"

namespace fp8lab {

/// The iteration X <- a X + (b A + c A A) X with A = X X^T. For an X of Frobenius norm 1 it moves
/// the singular values to about 1; it does not converge to 1.
struct NewtonSchulz {
  static constexpr int kSteps = 5;
  static constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
  static constexpr float kSmallestNorm = 1e-7f;
};

/// Returns Nesterov's look-ahead from the momentum m after the step and the clipped gradient g.
FP8LAB_HD inline float look_ahead(float momentum, float m, float g) {
  return (momentum * m) + ((1.0f - momentum) * g);
}

/// Returns the divisor of X: its norm, bounded from below.
FP8LAB_HD inline float direction_norm(float square_sum) {
  const float norm = __builtin_sqrtf(square_sum);
  return norm < NewtonSchulz::kSmallestNorm ? NewtonSchulz::kSmallestNorm : norm;
}

/// Returns the factor by which a matrix's learning rate is multiplied.
inline float update_factor(UpdateScale scale, std::int64_t rows, std::int64_t cols) {
  if (scale == UpdateScale::adamw_rms) {
    return 0.2f * __builtin_sqrtf(static_cast<float>(std::max(rows, cols)));
  }
  const float ratio = static_cast<float>(rows) / static_cast<float>(cols);
  return __builtin_sqrtf(ratio > 1.0f ? ratio : 1.0f);
}

namespace ops {

/// Computes update (R, C), f32 with bf16 values, from the gradient and the momentum after this
/// step. clip is the step's gradient factor, s = min(R, C), and bf16(.) rounds to nearest even:
///   X = bf16((momentum * m) + ((1 - momentum) * (gradient * clip)));
///   n = max(sqrt(tree_sum(X * X)), 1e-7);  X = bf16(X / n);
/// then NewtonSchulz::kSteps times, by Gemm with bf16 operands and the accumulator sm90_bf16:
///   A = bf16(X X^T), or bf16(X^T X) if R > C;  P = A A^T;   (s, s), P in FP32
///   A = bf16((b * A) + (c * P));
///   Q = A X, or X A^T if R > C;                             (R, C) in FP32
///   X = bf16((a * X) + Q);
/// and finally update = X. for_each_part() defines the order.
struct Orthogonalize {
  static constexpr std::string_view kName = "orthogonalize";
  static constexpr WorkClass kClass = WorkClass::optimizer;

  const UpdateSpec& spec;
  TensorView scalars;
  TensorView gradient;      ///< (R, C) f32 or bf16
  TensorView first_moment;  ///< f32, R * C elements: the momentum after this step
  TensorView update;        ///< f32 (R, C); holds P and Q during the iteration
  // Scratch memory.
  TensorView x;        ///< bf16 (R, C)
  TensorView gram;     ///< bf16 (s, s)
  TensorView squares;  ///< f32 (1, StepScalar::kCount)

  /// x = bf16(look_ahead) and squares = 0.
  struct LookAhead {
    const UpdateSpec& spec;
    TensorView scalars, gradient, first_moment, x, squares;
  };
  /// x = bf16(x / direction_norm(squares[kGradNormSquared])).
  struct Normalize {
    TensorView squares, x;
  };
  /// x = bf16((factor * x) + (product_factor * product)).
  struct AddProduct {
    float factor, product_factor;
    TensorView product, x;
  };

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("scalars", scalars));
    visit(reads("gradient", gradient));
    visit(reads("first_moment", first_moment));
    visit(writes("x", x));
    visit(writes("gram", gram));
    visit(writes("squares", squares));
    visit(writes("update", update));
  }
  /// Calls visit(part) for each part in order: LookAhead, Normalize, AddProduct, and operations.
  template <class Visit>
  void for_each_part(const Visit& visit) const;

  void check() const;
  /// Multiply-adds of the GEMMs.
  double work() const {
    const double small = static_cast<double>(std::min(x.rows, x.cols));
    return NewtonSchulz::kSteps * small * (2.0 * elements(x) + small * small);
  }
};

template <class Visit>
void Orthogonalize::for_each_part(const Visit& visit) const {
  GemmSpec to_bf16, to_f32;
  to_bf16.output = DType::bf16;
  to_f32.output = DType::f32;
  const bool is_tall = x.rows > x.cols;
  const std::int64_t small = gram.rows, large = is_tall ? x.rows : x.cols;
  const QuantSpec values;
  // X or its transpose: long_rows is (small, large), short_rows is (large, small).
  QuantizedOperand long_rows{values, small, large, x, {}}, short_rows{values, large, small, x, {}};
  (is_tall ? long_rows : short_rows).order = StorageOrder::rows_contiguous;
  const QuantizedOperand polynomial{values, small, small, gram, {}};
  const TensorView square{update.data, update.dtype, small, small, small};

  visit(LookAhead{spec, scalars, gradient, first_moment, x, squares});
  visit(AccumulateSquareSum{std::span(&x, 1), squares});
  visit(Normalize{squares, x});
  for (int step = 0; step < NewtonSchulz::kSteps; ++step) {
    visit(Gemm{to_bf16, long_rows, long_rows, {}, false, gram});
    visit(Gemm{to_f32, polynomial, polynomial, {}, false, square});
    visit(AddProduct{NewtonSchulz::kB, NewtonSchulz::kC, square, gram});
    if (is_tall) {
      visit(Gemm{to_f32, short_rows, polynomial, {}, false, update});
    } else {
      visit(Gemm{to_f32, polynomial, short_rows, {}, false, update});
    }
    visit(AddProduct{NewtonSchulz::kA, 1.0f, update, x});
  }
  visit(Copy{x, update});
}

}  // namespace ops
}  // namespace fp8lab
