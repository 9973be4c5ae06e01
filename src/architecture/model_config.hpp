// A decoder-only transformer as data: shared sizes, and a specification of every layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fp8lab {

enum class RopeType : std::uint8_t {
  unscaled,  ///< "default"
  linear,    ///< every frequency divided by `factor`
  dynamic,   ///< unscaled, since max_position_embeddings is the longest sequence accepted
  yarn,      ///< Peng et al. 2023 (arXiv:2309.00071): by parts, from beta_fast to beta_slow
  llama3,    ///< by parts, from high_freq_factor to low_freq_factor
};

/// How rotary frequencies are scaled for sequences beyond the pre-training length. Names, formulas
/// and defaults are those of transformers 5 (modeling_rope_utils.py). "Rotations" are those of a
/// frequency over the pre-training length.
struct RopeScaling {
  RopeType type = RopeType::unscaled;
  double factor = 1.0;
  std::int64_t original_max_position_embeddings = 0;  ///< yarn and llama3: pre-training length
  double low_freq_factor = 1.0;   ///< llama3: frequencies with fewer rotations are fully scaled
  double high_freq_factor = 4.0;  ///< llama3: frequencies with more rotations are not scaled
  double beta_fast = 32.0;        ///< yarn: frequencies with more rotations are not scaled
  double beta_slow = 1.0;         ///< yarn: frequencies with fewer rotations are fully scaled
  bool truncate = true;           ///< yarn: the ramp begins and ends at whole pairs
  double attention_factor = 0.0;  ///< yarn: factor of cosines and sines; 0: 0.1 ln(factor) + 1
  bool operator==(const RopeScaling&) const = default;
};

enum class NormKind : std::uint8_t {
  rmsnorm,    ///< Zhang and Sennrich 2019 (arXiv:1910.07467)
  layernorm,  ///< Ba et al. 2016 (arXiv:1607.06450), with weight and bias
};

/// Where a block f (attention or feed-forward) has norms; the new value of the residual stream x.
enum class NormPlace : std::uint8_t {
  pre,   ///< x + f(norm(x))        (GPT-2, Llama)
  post,  ///< x + norm(f(x))        (OLMo 2, arXiv:2501.00656)
  both,  ///< x + norm(f(norm(x)))  (Gemma 2, arXiv:2408.00118)
  none,  ///< x + f(x)
};
constexpr bool is_before(NormPlace place) {
  return place == NormPlace::pre || place == NormPlace::both;
}
constexpr bool is_after(NormPlace place) {
  return place == NormPlace::post || place == NormPlace::both;
}

/// What bounds queries and keys before the rotation: RMSNorm, or a function of each element.
enum class QkNorm : std::uint8_t {
  none,
  head,       ///< RMSNorm over each head (Qwen3)
  all_heads,  ///< RMSNorm over all heads at once (OLMo 2)
  elements,   ///< tanh(alpha x), one trained alpha each (Zhu et al. 2025, arXiv:2503.10622; FOG)
};

enum class FeedForwardKind : std::uint8_t {
  swiglu,      ///< silu(gate) * up (Shazeer 2020, arXiv:2002.05202)
  geglu_tanh,  ///< gelu(gate) * up of the same paper, with GELU in its tanh form (Gemma)
  gelu_tanh,   ///< GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)
  relu2,       ///< the square of max(x, 0) (So et al. 2021, arXiv:2109.08668; Nemotron-4)
  xielu,  ///< xIELU (Huang and Schlag 2024, arXiv:2411.13010; FOG), two trained numbers a layer
};
/// Whether a feed-forward block multiplies two projections of its input.
constexpr bool is_gated(FeedForwardKind kind) {
  return kind == FeedForwardKind::swiglu || kind == FeedForwardKind::geglu_tanh;
}

/// Causal softmax attention.
struct AttentionSpec {
  /// Keys that a query sees, its own included; 0: all keys up to its own.
  std::int64_t window = 0;
  double softmax_scale = 0.0;  ///< factor of scores in front of the softmax; 0: 1 / sqrt(head_dim)
  QkNorm qk_norm = QkNorm::none;
  bool qk_norm_frozen = false;  ///< the weights of these norms are not trained (FOG)
  bool qkv_bias = true;
  bool o_bias = false;
  bool operator==(const AttentionSpec&) const = default;
};

struct FeedForwardSpec {
  FeedForwardKind kind = FeedForwardKind::swiglu;
  bool bias = false;  ///< of both linear layers
  bool operator==(const FeedForwardSpec&) const = default;
};

/// The residual stream behind a block: stream * x + branch * f(x), with the norms of NormPlace.
struct ResidualFactors {
  double stream = 1.0, branch = 1.0;
  bool are_one() const { return stream == 1.0 && branch == 1.0; }
  bool operator==(const ResidualFactors&) const = default;
};

/// Factor of the products of a linear layer with `in` inputs, forward and backward.
enum class ProductFactor : std::uint8_t {
  one,
  inverse_sqrt_in,  ///< 1 / sqrt(in): products of weights and activations of variance 1 keep it
  inverse_in,       ///< 1 / in
};

/// One decoder layer: an attention block, then a feed-forward block. Each adds its output to the
/// residual stream.
struct LayerSpec {
  NormKind norm = NormKind::rmsnorm;
  NormPlace norm_place = NormPlace::pre;
  ResidualFactors residual{};
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
  bool operator==(const LayerSpec&) const = default;
};

/// Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685): the weight W of an output is frozen
/// and y = x W^T + (alpha / rank) (x A^T) B^T, with A (rank, in) and B (out, rank) trained, both in
/// high precision. Everything else of the model is frozen as well.
struct LoraSpec {
  std::int64_t rank = 0;  ///< 0: no adapters
  double alpha = 16.0;
  /// Outputs that have one in every layer with such outputs: "attention.q" and "mlp.gate" are parts
  /// of fused layers, "attention.o" and "mlp.down" whole ones.
  std::vector<std::string> targets = {"attention.q", "attention.k", "attention.v", "attention.o",
                                      "mlp.gate",    "mlp.up",      "mlp.down"};
  bool operator==(const LoraSpec&) const = default;
};

enum class PositionKind : std::uint8_t {
  rope,     ///< queries and keys are rotated (Su et al. 2021, arXiv:2104.09864)
  learned,  ///< a table of max_position_embeddings rows is added to the embedding
};

/// Decoder-only transformer. Field names follow Hugging Face config.json.
struct ModelConfig {
  std::int64_t vocab_size = 272;
  std::int64_t hidden_size = 256;
  std::int64_t intermediate_size = 512;
  std::int64_t num_attention_heads = 4;
  std::int64_t num_key_value_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t max_position_embeddings = 4096;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  PositionKind positions = PositionKind::rope;
  std::vector<LayerSpec> layers = std::vector<LayerSpec>(2);  ///< in order; never empty
  NormKind final_norm = NormKind::rmsnorm;                    ///< in front of the LM head
  bool has_final_norm = true;
  double rms_norm_eps = 1e-6;
  double layer_norm_eps = 1e-5;
  double initializer_range = 0.02;
  /// Of the rows of the token embedding; rounded to the type of activations.
  double embedding_factor = 1.0;
  ProductFactor linear_alpha = ProductFactor::one;  ///< of the linear layers within layers
  ProductFactor head_alpha = ProductFactor::one;    ///< of the LM head
  bool scaled_residual_init = false;                ///< smaller attention.o and mlp.down (GPT-2)
  /// The weights of norms behind blocks begin with 1 / sqrt(layers) (FOG, arXiv:2505.20524).
  bool scaled_norm_init = false;
  /// Files hold the weights of RMSNorms less 1 (Gemma). Parameters are the weights themselves,
  /// 1 + w rounded to FP32, which forward and backward read whatever the type of activations is.
  bool zero_centered_norms = false;
  /// Files hold q, k and v as one matrix, and gate and up as one (Phi-3).
  bool fused_projections = false;
  bool tie_word_embeddings = true;
  LoraSpec lora;
  bool operator==(const ModelConfig&) const = default;

  std::int64_t layer_count() const { return static_cast<std::int64_t>(layers.size()); }
  /// Drops layers at the end, or appends copies of the first.
  void set_layer_count(std::int64_t count) {
    const LayerSpec first = layers.front();
    layers.resize(static_cast<std::size_t>(count), first);
  }
  /// Calls edit(LayerSpec&) for every layer.
  template <class Edit>
  void edit_layers(const Edit& edit) {
    for (LayerSpec& layer : layers) edit(layer);
  }
};

}  // namespace fp8lab
