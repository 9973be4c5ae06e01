// The attention half of a layer: queries, keys and values from one linear layer, norms of their
// heads and rotation where the model has them, attention, and a linear layer back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/model/declaration.hpp"
#include "src/model/work.hpp"

namespace fp8lab {

class Attention {
 public:
  /// Declares the parts "attention.*" of layer `layer`.
  Attention(Declaration& declaration, const ModelConfig& model, std::int64_t layer);

  /// out (tokens, C) from the output of `norm`; appends keys and values to the cache if there is
  /// one.
  void forward(Work& work, const ops::Producer& norm, const TensorView& out) const;
  /// dx from dout and x, the norm's output; accumulates weight gradients.
  void backward(Work& work, const TensorView& x, const TensorView& dout,
                const TensorView& dx) const;
  /// The linear layer that reads the norm's output.
  LinearId first() const { return qkv_; }

 private:
  struct QkvViews {
    TensorView q, k, v;
    TensorView qk;  ///< q and k, which lie side by side
  };
  /// RMSNorm of each head of q and k.
  struct HeadNorms {
    HeadNorms(Declaration& declaration, const ModelConfig& model);
    ParameterId q, k;
    SavedId qk, q_rstd, k_rstd;
  };

  AttentionShape attention_shape(const Work& work) const;
  /// The columns of q, k and v.
  QkvViews split(const TensorView& qkv) const;
  /// The saved q, k and v of the forward pass, q and k after norms and rotation.
  QkvViews inputs(const Work& work) const;
  void normalise_heads(Work& work) const;
  void normalise_heads_backward(Work& work, const QkvViews& gradients) const;
  void rotate(Work& work, const QkvViews& views, bool inverse) const;
  void attend(Work& work, const QkvViews& views) const;

  std::string name_;  ///< "layers.0.attention"
  std::int64_t layer_, heads_, kv_heads_, head_dim_;
  std::int64_t window_;  ///< AttentionShape::window
  bool is_rotated_;
  float epsilon_;
  LinearId qkv_;
  std::optional<HeadNorms> head_norms_;
  LinearId o_;
  SavedId qkv_out_, attended_, lse_;
  ScratchId d_qkv_, d_attended_;
};

}  // namespace fp8lab
