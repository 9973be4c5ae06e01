#include "src/model/blocks/block_input.hpp"

namespace fp8lab {
namespace {

/// The tensor itself: adapters read what the operation of a linear layer may leave unwritten.
TensorView made(Work& work, const BlockInput& input) {
  if (const auto* const tensor = std::get_if<TensorView>(&input)) return *tensor;
  const ops::Producer& producer = std::get<ops::Producer>(input);
  std::visit([&](const auto& op) { work.run(op); }, producer);
  return ops::output_of(producer);
}

}  // namespace

void forward_linear(Work& work, const AdaptedLinear& linear, const BlockInput& input,
                    const TensorView& y) {
  Linear& base = work.linear(linear.base);
  if (linear.adapters.empty()) {
    return std::visit([&](const auto& x) { base.forward(work.context(), x, y); }, input);
  }
  const TensorView x = made(work, input);
  base.forward(work.context(), x, y);
  for (const AdapterParts& adapter : linear.adapters) {
    const TensorView hidden = work.saved(adapter.hidden), out = work.scratch(adapter.out);
    work.linear(adapter.a).forward(work.context(), x, hidden);
    work.linear(adapter.b).forward(work.context(), hidden, out);
    const TensorView part = y.columns(adapter.first, adapter.count);
    work.run(ops::Add{.a = part, .b = out, .sum = part});
  }
}

void backward_linear(Work& work, const AdaptedLinear& linear, const TensorView& x,
                     const BlockInput& dy, const TensorView& dx) {
  Linear& base = work.linear(linear.base);
  if (linear.adapters.empty()) {
    return std::visit([&](const auto& d) { base.backward(work.context(), x, d, dx); }, dy);
  }
  const TensorView d = made(work, dy);
  base.backward(work.context(), x, d, dx);
  for (const AdapterParts& adapter : linear.adapters) {
    const TensorView d_hidden = work.scratch(adapter.d_hidden), d_x = work.scratch(adapter.d_x);
    work.linear(adapter.b).backward(work.context(), work.saved(adapter.hidden),
                                    d.columns(adapter.first, adapter.count), d_hidden);
    work.linear(adapter.a).backward(work.context(), x, d_hidden, d_x);
    work.run(ops::Add{.a = dx, .b = d_x, .sum = dx});
  }
}

}  // namespace fp8lab
