// What the families with rotary positions share: fields of config.json, and names of weights.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/config/families/family.hpp"

namespace fp8lab::rotary {

constexpr std::int64_t kLarge = std::int64_t{1} << 40;

using Kind = WeightName::Kind;

constexpr std::array<WeightName, 14> kWeights = {{
    {"embed", "", "model.embed_tokens", Kind::other},
    {"layers.{}.attention.norm", "", "model.layers.{}.input_layernorm", Kind::other},
    {"layers.{}.attention.qkv", "q", "model.layers.{}.self_attn.q_proj", Kind::linear},
    {"layers.{}.attention.qkv", "k", "model.layers.{}.self_attn.k_proj", Kind::linear},
    {"layers.{}.attention.qkv", "v", "model.layers.{}.self_attn.v_proj", Kind::linear},
    {"layers.{}.attention.q_norm", "", "model.layers.{}.self_attn.q_norm", Kind::other},
    {"layers.{}.attention.k_norm", "", "model.layers.{}.self_attn.k_norm", Kind::other},
    {"layers.{}.attention.o", "", "model.layers.{}.self_attn.o_proj", Kind::linear},
    {"layers.{}.mlp.norm", "", "model.layers.{}.post_attention_layernorm", Kind::other},
    {"layers.{}.mlp.gate_up", "gate", "model.layers.{}.mlp.gate_proj", Kind::linear},
    {"layers.{}.mlp.gate_up", "up", "model.layers.{}.mlp.up_proj", Kind::linear},
    {"layers.{}.mlp.down", "", "model.layers.{}.mlp.down_proj", Kind::linear},
    {"norm", "", "model.norm", Kind::other},
    {"lm_head", "", "lm_head", Kind::linear},
}};

/// Values of fields that a file leaves out.
struct UsualFields {
  std::optional<std::int64_t> head_dim = std::nullopt;  ///< nothing: hidden_size / heads
  double epsilon = 1e-6;
  bool is_tied = false;  ///< tie_word_embeddings
};

/// Returns true for rope_parameters that hold an object for each of "full_attention" and
/// "sliding_attention".
bool states_by_layer_type(const nlohmann::json& rope_parameters);

/// Reads sizes, frequencies (of layers with full attention), rms_norm_eps and tie_word_embeddings.
/// Throws Error naming the field.
void read_common(JsonFields& fields, const std::string& origin, ModelConfig& model,
                 const UsualFields& usual = {});

/// For each layer, whether it has the window.
using Sliding = std::vector<bool>;

bool slides(const Sliding& layers);

/// Reads `layer_types`, which every family accepts; nothing if it is absent.
std::optional<Sliding> read_layer_types(JsonFields& fields, std::int64_t layers);

/// Sets the window of the layers that slide; it has no effect if none does.
void set_windows(JsonFields& fields, std::int64_t window, const Sliding& sliding,
                 ModelConfig& model);

/// For families without windows: a file that states one is refused.
void refuse_windows(JsonFields& fields, const ModelConfig& model);

/// Returns the fields that read_common reads, with hidden_act "silu" and attention_dropout 0; the
/// caller adds the biases and windows of its family.
nlohmann::ordered_json write_common(const ModelConfig& model);

void write_attention_bias(const ModelConfig& model, nlohmann::ordered_json& config);

}  // namespace fp8lab::rotary
