// Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219): layers as those of Llama, whose
// files hold q, k and v as one matrix, and gate and up as another.
#include <algorithm>
#include <array>

#include "src/config/families/rotary_fields.hpp"

namespace fp8lab {
namespace {

using rotary::Kind;
using rotary::kWeights;

constexpr std::array<WeightName, 9> kPhi3Weights = {{
    kWeights[0],
    kWeights[1],
    {"layers.{}.attention.qkv", "", "model.layers.{}.self_attn.qkv_proj", Kind::linear},
    kWeights[7],
    kWeights[8],
    {"layers.{}.mlp.gate_up", "", "model.layers.{}.mlp.gate_up_proj", Kind::linear},
    kWeights[11],
    kWeights[12],
    kWeights[13],
}};

/// The original length is of "longrope". The published files name code of their own, which computes
/// the same as that of transformers.
constexpr std::array<IdleField, 8> kPhi3Idle = {{
    {"hidden_act", "\"silu\""},
    {"attention_dropout", "0.0"},
    {"resid_pdrop", "0.0"},
    {"embd_pdrop", "0.0"},
    {"partial_rotary_factor", "1.0"},
    {"attention_bias", "false"},
    {"original_max_position_embeddings", "*"},
    {"auto_map", R"({"AutoConfig": "configuration_phi3.Phi3Config",
                     "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"})"},
}};

/// One window for all layers. Of rotary frequencies transformers has the unscaled ones and
/// "longrope", under which it also reads "yarn".
void read_phi3(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  model.fused_projections = true;
  rotary::read_common(fields, origin, model, {.epsilon = 1e-5});
  if (model.rope_scaling.type != RopeType::unscaled) {
    fields.fail(fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters",
                {.reason = "scales frequencies by a rule that phi3 has not", .accepted = "null"});
  }
  const bool has_window = fields.has("sliding_window");
  const std::int64_t window =
      has_window ? fields.integer("sliding_window", std::nullopt, 1, rotary::kLarge) : 0;
  rotary::set_windows(fields, window, rotary::Sliding(model.layers.size(), window > 0), model);
}

/// config.json has one window and no scaling of frequencies.
bool has_phi3_shape(const ModelConfig& model) {
  return model.rope_scaling.type == RopeType::unscaled &&
         std::all_of(model.layers.begin(), model.layers.end(), [&](const LayerSpec& layer) {
           return layer.attention.window == model.layers.front().attention.window;
         });
}

nlohmann::ordered_json write_phi3(const ModelConfig& model) {
  nlohmann::ordered_json config = rotary::write_common(model);
  const std::int64_t window = model.layers.front().attention.window;
  config["sliding_window"] = window > 0 ? nlohmann::ordered_json(window) : nullptr;
  config["original_max_position_embeddings"] = model.max_position_embeddings;
  config["resid_pdrop"] = 0.0;
  config["embd_pdrop"] = 0.0;
  return config;
}

}  // namespace

const Family kPhi3 = {.model_type = "phi3",
                      .architecture = "Phi3ForCausalLM",
                      .layer = {.attention = {.qkv_bias = false}, .feed_forward = {}},
                      .windows = Windows::any,
                      .fused_projections = true,
                      .read = read_phi3,
                      .has_shape = has_phi3_shape,
                      .write = write_phi3,
                      .weights = kPhi3Weights,
                      .idle = kPhi3Idle};

}  // namespace fp8lab
