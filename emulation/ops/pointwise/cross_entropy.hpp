// Loss and its gradient over the vocabulary.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/step_scalars.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// Masked token cross-entropy. targets (1, T) i32, weights (1, T) f32 (any finite), logits (T, V),
/// token_loss (1, T) f32, dlogits (may alias logits; empty: evaluation only).
///
/// Per token of weight w != 0 with target g: m = max(z), NaN ignored;  e = exp2((z - m) * kLog2E);
/// sum = tree_sum(e);  loss = ((log2(sum) + ((m - z_g) * kLog2E)) * kLn2) * w;
/// dlogits = (e * (1 / sum) - onehot) * (w * scalars[kInverseTokens]).
/// Tokens of weight 0: loss and dlogits are +0, and the target is not read.
/// Then scalars[kLossSum] = scalars[kLossSum] + tree_sum(summed), nats, unless `summed` is empty.
/// Throws Error for a target outside [0, V) with nonzero weight.
struct CrossEntropy {
  static constexpr std::string_view kName = "cross_entropy";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView logits, targets, weights, scalars, token_loss, dlogits;
  /// (1, n) f32, the losses that are summed. With chunked logits: all losses for the last chunk,
  /// empty for earlier chunks.
  TensorView summed = token_loss;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("logits", logits));
    visit(reads("targets", targets));
    visit(reads("weights", weights));
    visit(reads("summed", summed));
    visit(writes("token_loss", token_loss));
    visit(writes("dlogits", dlogits));
    visit(summed.empty() ? reads("scalars", scalars) : updates("scalars", scalars));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(logits, dlogits); }
};

}  // namespace fp8lab::ops
