// The attention half of a layer: queries, keys and values from one linear layer, norms of their
// heads and rotation where the model has them, attention, and a linear layer back.
#pragma once

#include <cstdint>
#include <string>

#include "src/architecture/parts.hpp"
#include "src/model/blocks/block_input.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

class Attention {
 public:
  /// `layer` is its index in a cache.
  Attention(AttentionParts parts, std::int64_t layer)
      : parts_(parts), layer_(layer), name_("layers." + std::to_string(layer) + ".attention") {}

  /// out (tokens, C) from `input`; appends keys and values to the cache if there is one.
  void forward(Work& work, const BlockInput& input, const TensorView& out) const;
  /// dx from dout and x, the block's input; accumulates weight gradients. dx may be dout.
  void backward(Work& work, const TensorView& x, const TensorView& dout,
                const TensorView& dx) const;

 private:
  struct QkvViews {
    TensorView q, k, v;
    TensorView qk;  ///< q and k, which lie side by side
  };

  AttentionShape attention_shape(const Work& work) const;
  /// The columns of q, k and v.
  QkvViews split(const TensorView& qkv) const;
  /// The saved q, k and v of the forward pass, q and k after norms and rotation.
  QkvViews inputs(const Work& work) const;
  void normalise_heads(Work& work) const;
  void normalise_heads_backward(Work& work, const QkvViews& gradients) const;
  /// Of tanh(alpha x): replaces `gradient` by that of x, and adds to that of alpha.
  void bound_backward(Work& work, const Parameter& alpha, const TensorView& x,
                      const TensorView& gradient) const;
  void rotate(Work& work, const QkvViews& views, bool inverse) const;
  void attend(Work& work, const QkvViews& views) const;
  /// The same on operands that are quantized first.
  void attend_quantized(Work& work, const QkvViews& views) const;
  /// `gradients` of the q, k and v in `views`, from dO.
  void differentiate(Work& work, const QkvViews& views, const TensorView& dout,
                     const QkvViews& gradients) const;
  void differentiate_quantized(Work& work, const QkvViews& views, const TensorView& dout,
                               const QkvViews& gradients) const;

  AttentionParts parts_;
  std::int64_t layer_;
  std::string name_;  ///< "layers.0.attention"
};

}  // namespace fp8lab
