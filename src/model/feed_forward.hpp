// The feed-forward half of a layer: a linear layer up, an activation, a linear layer down.
#pragma once

#include <memory>

#include "src/model/declaration.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  /// out (tokens, C) from the output of `norm`.
  virtual void forward(Work& work, const ops::Producer& norm, const TensorView& out) const = 0;
  /// Recomputes the saved tensors that backward reads.
  virtual void recompute(Work& work, const ops::Producer& norm) const = 0;
  /// dx from dout and x, the norm's output; accumulates weight gradients. Call once after each
  /// forward or recompute: it overwrites their saved tensors with gradients.
  virtual void backward(Work& work, const TensorView& x, const TensorView& dout,
                        const TensorView& dx) const = 0;
  /// The linear layer that reads the norm's output.
  virtual LinearId first() const = 0;
};

/// The model's feed-forward block, its parts called "mlp.*".
std::unique_ptr<FeedForward> make_feed_forward(Declaration& declaration, const ModelConfig& model);

}  // namespace fp8lab
