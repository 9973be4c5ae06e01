#include "src/model/blocks/feed_forward.hpp"

namespace fp8lab {
namespace {

Gate gate_of(FeedForwardKind kind) {
  return kind == FeedForwardKind::geglu_tanh ? Gate::gelu_tanh : Gate::silu;
}

/// The activation of a kind without a gate.
Activation ungated(FeedForwardKind kind) {
  return kind == FeedForwardKind::relu2 ? Activation::relu2 : Activation::gelu_tanh;
}

}  // namespace

ops::Producer FeedForward::activation(const Work& work) const {
  const TensorView inner = work.saved(parts_.inner), activated = work.saved(parts_.activated);
  if (is_gated(parts_.kind)) {
    return ops::GatedForward{.gate = gate_of(parts_.kind), .gate_up = inner, .out = activated};
  }
  if (parts_.xielu) {
    return ops::XieluForward{.x = inner,
                             .p = work.parameter(parts_.xielu->p).working(),
                             .n = work.parameter(parts_.xielu->n).working(),
                             .out = activated};
  }
  return ops::ActivationForward{.kind = ungated(parts_.kind), .x = inner, .out = activated};
}

ops::Producer FeedForward::activation_backward(const Work& work) const {
  const TensorView inner = work.saved(parts_.inner), dout = work.scratch(parts_.d_activated);
  if (is_gated(parts_.kind)) {
    return ops::GatedBackward{
        .gate = gate_of(parts_.kind), .gate_up = inner, .dout = dout, .dgate_up = inner};
  }
  if (parts_.xielu) {
    const Parameter &p = work.parameter(parts_.xielu->p), &n = work.parameter(parts_.xielu->n);
    const bool is_trained = p.is_trained() || n.is_trained();
    return ops::XieluBackward{
        .x = inner,
        .p = p.working(),
        .n = n.working(),
        .dout = dout,
        .dx = inner,
        .terms = is_trained ? work.scratch(parts_.xielu->terms) : TensorView{}};
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
  if (!work.recomputes(Recompute::feed_forward) || work.remakes_x()) return;
  remake_x(work);
}

void FeedForward::remake_x(Work& work) const {
  work.linear(parts_.down.base).recompute_x(work.context(), activation(work));
}

void FeedForward::backward(Work& work, const TensorView& x, const TensorView& dout,
                           const TensorView& dx) const {
  backward_linear(work, parts_.down, work.saved_x(parts_.activated), dout,
                  work.scratch(parts_.d_activated));
  backward_linear(work, parts_.up, x, activation_backward(work), dx);
  if (!parts_.xielu) return;
  const TensorView terms = work.scratch(parts_.xielu->terms);
  std::int64_t column = 0;
  for (const ParameterId id : {parts_.xielu->p, parts_.xielu->n}) {
    const Parameter& number = work.parameter(id);
    const TensorView of_number = terms.columns(column++, 1);
    if (!number.is_trained()) continue;
    work.run(number.name(), ops::BiasBackward{.dy = of_number, .dbias = number.gradient()});
  }
}

}  // namespace fp8lab
