// Decoder-only transformer of the Llama, Qwen2 and Qwen3 families, forward and backward once
// against Backend.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/dataset.hpp"
#include "src/model/kv_cache.hpp"
#include "src/model/linear.hpp"
#include "src/model/parameters.hpp"

namespace fp8lab {

/// Layout of a micro-batch and the attention tiles. For tokens with a cache: tokens() is the most
/// that one pass takes, sequence_length the longest sequence.
struct BatchShape {
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  AttentionConfig attention;
  std::int64_t tokens() const { return sequences * sequence_length; }
};

/// A linear layer's name, as recipes match it, and its shape.
struct LinearShape {
  std::string name;
  std::int64_t in = 0, out = 0;
};

/// The linear layers in the order of Transformer::linears().
std::vector<LinearShape> linear_shapes(const ModelConfig& model);

/// The model at work: activations of one micro-batch and the linear layers under one recipe.
/// Pre-norm blocks: h += o(attention(rope(qkv(norm(h))))); h += down(swiglu(gate_up(norm(h)))).
/// With qk_norm the heads of q and k are normalised before rope.
class Transformer {
 public:
  Transformer(Backend& backend, const Parameters& parameters, const ModelConfig& model,
              const Recipe& recipe, const BatchShape& shape, Purpose purpose = Purpose::training);

  /// Copies the batch into backend memory.
  void load(const Batch& batch);
  /// The same for new tokens of the sequences in `cache`, which must live until the next load().
  /// forward() appends them; logits() are those of batch.wanted alone, with the bits that a forward
  /// pass over the whole sequences gives if every quantization is local to a token. Nothing can
  /// follow but loss() without gradient, for set_targets(), and argmax().
  void load(const CachedBatch& batch, const KvCache& cache);
  /// Targets of the rows of logits(), all with weight 1.
  void set_targets(const std::vector<std::int32_t>& targets);
  /// A cache for sequences of this model and shape.
  KvCache make_cache(std::int64_t sequences, std::int64_t capacity);
  /// Quantizes all weights for the step.
  void prepare_weights(const StepContext& context);
  /// Logits of the loaded batch.
  void forward(const StepContext& context);
  /// Adds the batch's loss to scalars[kLossSum]; with `gradient`, turns the logits into their
  /// gradient.
  void loss(const TensorView& scalars, bool gradient);
  /// Accumulates all parameter gradients from the logit gradient that loss() left.
  void backward(const StepContext& context);

  void update_delayed_scales();
  void discard_amaxes();
  bool has_delayed_scales() const;
  /// Linear::is_without_history of every slot of every layer.
  std::vector<std::uint8_t> without_history() const;

  const std::vector<std::unique_ptr<Linear>>& linears() const { return linears_; }
  /// What the linear layers hold in backend memory, with the buffers that they share.
  std::size_t operand_bytes() const { return operand_bytes_; }
  TensorView logits() const { return logits_.row_range(0, outputs_); }          ///< (T, V)
  TensorView token_losses() const { return token_loss_.columns(0, outputs_); }  ///< (1, T) f32
  TensorView argmax();  ///< (1, T) i32 of the logits
  const BatchShape& shape() const { return shape_; }

 private:
  struct LayerActivations {
    TensorView input, norm1, rstd1, qkv, attention, lse, middle, norm2, rstd2, gate_up, swiglu;
    TensorView qk, q_rstd, k_rstd;  ///< normalised q and k: with qk_norm only
    LayerActivations first_tokens(std::int64_t count) const;
  };
  struct QkvViews {
    TensorView q, k, v;
  };

  void build_layers(const Recipe& recipe, Purpose purpose);
  void allocate_activations(Purpose purpose);
  LayerActivations allocate_layer();
  /// The activations of the loaded tokens.
  LayerActivations activations(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].first_tokens(rows_);
  }
  void build_rope_tables();
  Linear& linear(std::int64_t layer, int which) {
    return *linears_[static_cast<std::size_t>(layer * 4 + which)];
  }
  AttentionShape attention_shape() const;
  /// The columns of q, k and v.
  QkvViews split(const TensorView& qkv) const;
  /// The same, with q and k as attention reads them.
  QkvViews attention_inputs(const LayerActivations& layer) const;
  void normalise_heads(std::int64_t layer);
  void normalise_heads_backward(std::int64_t layer, const QkvViews& gradients);
  void rotate(const QkvViews& views, bool inverse);
  void attend(std::int64_t layer, const QkvViews& views);
  void forward_layer(const StepContext& context, std::int64_t layer, const TensorView& output);
  void backward_mlp(const StepContext& context, std::int64_t layer);
  void backward_attention(const StepContext& context, std::int64_t layer);

  Backend& backend_;
  const Parameters& parameters_;
  ModelConfig model_;
  BatchShape shape_;
  DType activation_;
  Workspace workspace_;
  std::size_t operand_bytes_ = 0;
  std::vector<std::unique_ptr<Linear>> linears_;  ///< qkv, o, gate_up, down of each layer; lm_head

  std::int64_t rows_ = 0;           ///< loaded tokens
  std::int64_t outputs_ = 0;        ///< rows of logits
  const KvCache* cache_ = nullptr;  ///< of the loaded tokens, if they have one
  TensorView tokens_, targets_, weights_, positions_, document_start_, wanted_;
  TensorView cosine_, sine_;
  std::vector<LayerActivations> layers_;
  TensorView final_input_, final_norm_, final_rstd_, logits_, token_loss_, argmax_;
  TensorView d_hidden_, d_branch_, d_qkv_, d_attention_, d_gate_up_, d_swiglu_, branch_;
};

}  // namespace fp8lab
