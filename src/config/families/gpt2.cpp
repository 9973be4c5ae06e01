// GPT-2 (Radford et al. 2019): LayerNorm, GELU in its tanh form, learned positions, and a bias on
// every linear layer of a block. Its files store the weights of linear layers as (in, out).
#include <fmt/format.h>

#include <array>
#include <utility>

#include "src/config/families/family.hpp"

namespace fp8lab {
namespace {

using Kind = WeightName::Kind;

constexpr std::array<WeightName, 10> kGpt2Weights = {{
    {"embed", "", "transformer.wte", Kind::other},
    {"positions", "", "transformer.wpe", Kind::other},
    {"layers.{}.attention.norm", "", "transformer.h.{}.ln_1", Kind::other},
    {"layers.{}.attention.qkv", "", "transformer.h.{}.attn.c_attn", Kind::transposed_linear},
    {"layers.{}.attention.o", "", "transformer.h.{}.attn.c_proj", Kind::transposed_linear},
    {"layers.{}.mlp.norm", "", "transformer.h.{}.ln_2", Kind::other},
    {"layers.{}.mlp.up", "", "transformer.h.{}.mlp.c_fc", Kind::transposed_linear},
    {"layers.{}.mlp.down", "", "transformer.h.{}.mlp.c_proj", Kind::transposed_linear},
    {"norm", "", "transformer.ln_f", Kind::other},
    {"lm_head", "", "lm_head", Kind::linear},
}};

void read(JsonFields& fields, const std::string&, ModelConfig& model) {
  const auto count = [&](const char* key, std::optional<std::int64_t> fallback,
                         std::int64_t maximum) {
    return fields.integer(key, fallback, 1, maximum);
  };
  model.scaled_residual_init = true;
  model.vocab_size = fields.integer("vocab_size", std::nullopt, 2, INT32_MAX);
  model.hidden_size = count("n_embd", std::nullopt, 1 << 20);
  model.intermediate_size = count("n_inner", 4 * model.hidden_size, 1 << 22);
  model.set_layer_count(count("n_layer", std::nullopt, 10000));
  model.num_attention_heads = count("n_head", std::nullopt, 1 << 16);
  model.num_key_value_heads = model.num_attention_heads;
  model.max_position_embeddings = count("n_positions", std::nullopt, 1 << 30);
  if (model.hidden_size % model.num_attention_heads != 0) {
    fields.fail("n_head",
                {.verb = "=",
                 .found = fmt::to_string(model.num_attention_heads),
                 .reason = fmt::format("does not divide n_embd = {}", model.hidden_size)});
  }
  model.head_dim = model.hidden_size / model.num_attention_heads;
  if (model.head_dim > 1024) {
    fields.fail("n_head", {.verb = "=",
                           .found = fmt::to_string(model.num_attention_heads),
                           .reason = fmt::format("makes heads of {}", model.head_dim),
                           .accepted = "at most 1024"});
  }
  require_possible_size(fields, "n_embd", model);
  model.layer_norm_eps = fields.number("layer_norm_epsilon", 1e-5, 0.0, 1.0);
  model.tie_word_embeddings = fields.boolean("tie_word_embeddings", true);
  const std::string activation = fields.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    fields.fail("activation_function", {.found = fmt::format("'{}'", activation.substr(0, 80)),
                                        .accepted = "gelu_new, gelu_pytorch_tanh"});
  }
  // Older names of the fields, and the names that other families use for them.
  const std::pair<const char*, std::int64_t> again[] = {
      {"n_ctx", model.max_position_embeddings},
      {"max_position_embeddings", model.max_position_embeddings},
      {"hidden_size", model.hidden_size},
      {"num_hidden_layers", model.layer_count()},
      {"num_attention_heads", model.num_attention_heads},
  };
  for (const auto& [key, value] : again) fields.require(key, value);
}

/// This program trains without dropout, whatever the rates; the summary
/// fields belong to other heads.
constexpr std::array<IdleField, 14> kGpt2Idle = {{
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"reorder_and_upcast_attn", "false"},
    {"n_special", "0"},
    {"predict_special_tokens", "true"},
    {"output_past", "true"},
    {"resid_pdrop", "*"},
    {"embd_pdrop", "*"},
    {"attn_pdrop", "*"},
    {"summary_activation", "*"},
    {"summary_first_dropout", "*"},
    {"summary_proj_to_labels", "*"},
    {"summary_type", "*"},
    {"summary_use_proj", "*"},
}};

/// config.json has no fields for these sizes.
bool has_shape(const ModelConfig& model) {
  return model.num_key_value_heads == model.num_attention_heads &&
         model.head_dim * model.num_attention_heads == model.hidden_size;
}

nlohmann::ordered_json write(const ModelConfig& model) {
  nlohmann::ordered_json config;
  config["n_embd"] = model.hidden_size;
  config["n_inner"] = model.intermediate_size;
  config["n_layer"] = model.layer_count();
  config["n_head"] = model.num_attention_heads;
  config["n_positions"] = model.max_position_embeddings;
  config["activation_function"] = "gelu_new";
  config["layer_norm_epsilon"] = model.layer_norm_eps;
  config["scale_attn_weights"] = true;
  config["resid_pdrop"] = 0.0;
  config["embd_pdrop"] = 0.0;
  config["attn_pdrop"] = 0.0;
  return config;
}

}  // namespace

const Family kGpt2 = {.model_type = "gpt2",
                      .architecture = "GPT2LMHeadModel",
                      .layer = {.norm = NormKind::layernorm,
                                .attention = {.qkv_bias = true, .o_bias = true},
                                .feed_forward = {FeedForwardKind::gelu_tanh, true}},
                      .positions = PositionKind::learned,
                      .read = read,
                      .has_shape = has_shape,
                      .write = write,
                      .weights = kGpt2Weights,
                      .optional_prefix = "transformer.",
                      .idle = kGpt2Idle};

}  // namespace fp8lab
