#include "src/model/blocks/feed_forward.hpp"

namespace fp8lab {
namespace {

/// The activation of a kind without a gate.
Activation ungated(FeedForwardKind kind) {
  return kind == FeedForwardKind::relu2 ? Activation::relu2 : Activation::gelu_tanh;
}

}  // namespace

ops::Producer FeedForward::activation(const Work& work) const {
  const TensorView inner = work.saved(parts_.inner), activated = work.saved(parts_.activated);
  if (parts_.kind == FeedForwardKind::swiglu) return ops::SwigluForward{inner, activated};
  return ops::ActivationForward{.kind = ungated(parts_.kind), .x = inner, .out = activated};
}

ops::Producer FeedForward::activation_backward(const Work& work) const {
  const TensorView inner = work.saved(parts_.inner), dout = work.scratch(parts_.d_activated);
  if (parts_.kind == FeedForwardKind::swiglu) {
    return ops::SwigluBackward{.gate_up = inner, .dout = dout, .dgate_up = inner};
  }
  return ops::ActivationBackward{
      .kind = ungated(parts_.kind), .x = inner, .dout = dout, .dx = inner};
}

void FeedForward::forward(Work& work, const BlockInput& input, const TensorView& out) const {
  forward_linear(work, parts_.up, input, work.saved(parts_.inner));
  forward_linear(work, parts_.down, activation(work), out);
}

void FeedForward::recompute(Work& work, const BlockInput& input) const {
  forward_linear(work, parts_.up, input, work.saved(parts_.inner));
  if (!work.recomputes(Recompute::feed_forward)) return;
  work.linear(parts_.down.base).recompute_x(work.context(), activation(work));
}

void FeedForward::backward(Work& work, const TensorView& x, const TensorView& dout,
                           const TensorView& dx) const {
  backward_linear(work, parts_.down, work.saved_x(parts_.activated), dout,
                  work.scratch(parts_.d_activated));
  backward_linear(work, parts_.up, x, activation_backward(work), dx);
}

}  // namespace fp8lab
