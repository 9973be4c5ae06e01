// The feed-forward half of a layer: a linear layer up, an activation, a linear layer down.
#pragma once

#include "src/architecture/parts.hpp"
#include "src/model/blocks/block_input.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

class FeedForward {
 public:
  explicit FeedForward(FeedForwardParts parts) : parts_(parts) {}

  /// out (tokens, C) from `input`.
  void forward(Work& work, const BlockInput& input, const TensorView& out) const;
  /// Recomputes the saved tensors that backward reads.
  void recompute(Work& work, const BlockInput& input) const;
  /// Recomputes the input of the linear layer down, from the activation function's input as it is
  /// restored.
  void remake_x(Work& work) const;
  /// dx from dout and x, the block's input; accumulates weight gradients. dx may be dout. Call once
  /// after each forward or recompute: it overwrites their saved tensors with gradients.
  void backward(Work& work, const TensorView& x, const TensorView& dout,
                const TensorView& dx) const;

 private:
  /// The activation, and its backward pass, which replaces its input by the gradient.
  ops::Producer activation(const Work& work) const;
  ops::Producer activation_backward(const Work& work) const;

  FeedForwardParts parts_;
};

}  // namespace fp8lab
