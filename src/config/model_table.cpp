#include "src/config/model_table.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>

#include "src/config/config_names.hpp"
#include "src/config/run_text.hpp"
#include "src/config/size_limits.hpp"

namespace fp8lab {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 40;

/// Refuses keys of another rope_type than `type`.
void check_keys_of_type(TomlReader& table, RopeType type) {
  struct Key {
    const char* name;
    RopeType type;
  };
  constexpr std::array<Key, 6> kKeys = {{{"low_freq_factor", RopeType::llama3},
                                         {"high_freq_factor", RopeType::llama3},
                                         {"beta_fast", RopeType::yarn},
                                         {"beta_slow", RopeType::yarn},
                                         {"truncate", RopeType::yarn},
                                         {"attention_factor", RopeType::yarn}}};
  for (const Key& key : kKeys) {
    if (type == key.type || !table.has(key.name)) continue;
    table.fail(key.name,
               fmt::format("is for rope_type = \"{}\"", word_for(kRopeTypeNames, key.type)));
  }
  const bool by_parts = type == RopeType::yarn || type == RopeType::llama3;
  if (by_parts && !table.has("original_max_position_embeddings")) {
    table.refuse("original_max_position_embeddings", "missing", "the pre-training length");
  }
  if (!by_parts && table.has("original_max_position_embeddings")) {
    table.fail("original_max_position_embeddings",
               "is for rope_type = \"yarn\" and rope_type = \"llama3\"");
  }
  if (type == RopeType::unscaled && table.has("factor")) {
    table.fail("factor", "rope_type = \"default\" scales nothing");
  }
  if (type != RopeType::unscaled && !table.has("factor")) {
    table.refuse("factor", "missing", "a number from 1 on");
  }
}

RopeScaling read_rope_scaling(TomlReader& model) {
  RopeScaling scaling;
  std::optional<TomlReader> table = model.table("rope_scaling");
  if (!table) return scaling;
  const auto number = [&](const char* key, double& value, double minimum) {
    value = table->number(key, value, minimum, 1e12);
  };
  if (!table->has("rope_type")) {
    table->refuse("rope_type", "missing", "default, linear, dynamic, yarn, llama3");
  }
  scaling.type = table->choice("rope_type", kRopeTypeNames, scaling.type);
  number("factor", scaling.factor, 1.0);
  scaling.original_max_position_embeddings =
      table->integer("original_max_position_embeddings", 0, 1, kLarge);
  number("low_freq_factor", scaling.low_freq_factor, 1e-6);
  number("high_freq_factor", scaling.high_freq_factor, 1e-6);
  number("beta_fast", scaling.beta_fast, 1e-6);
  number("beta_slow", scaling.beta_slow, 1e-6);
  scaling.truncate = table->boolean("truncate", scaling.truncate);
  number("attention_factor", scaling.attention_factor, 1e-6);
  table->finish();
  check_keys_of_type(*table, scaling.type);
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    table->refuse("high_freq_factor", fmt::format("{}", scaling.high_freq_factor),
                  fmt::format("more than low_freq_factor = {}", scaling.low_freq_factor));
  }
  if (scaling.beta_slow >= scaling.beta_fast) {
    table->refuse("beta_fast", fmt::format("{}", scaling.beta_fast),
                  fmt::format("more than beta_slow = {}", scaling.beta_slow));
  }
  return scaling;
}

void check_heads(const TomlReader& table, const ModelConfig& model) {
  if (model.head_dim % 2 != 0) {
    table.fail("head_dim", fmt::format("{} is odd; rotary embeddings turn pairs of channels, "
                                       "accepted: an even number",
                                       model.head_dim));
  }
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    table.fail("num_key_value_heads",
               fmt::format("{} does not divide num_attention_heads = {}", model.num_key_value_heads,
                           model.num_attention_heads));
  }
}

std::string rope_scaling_text(const RopeScaling& scaling) {
  if (scaling == RopeScaling{}) return "";
  std::string text =
      fmt::format("\n[model.rope_scaling]\nrope_type = \"{}\"\nfactor = {}\n",
                  word_for(kRopeTypeNames, scaling.type), toml_number(scaling.factor));
  if (scaling.original_max_position_embeddings > 0) {
    text += fmt::format("original_max_position_embeddings = {}\n",
                        scaling.original_max_position_embeddings);
  }
  if (scaling.type == RopeType::llama3) {
    text +=
        fmt::format("low_freq_factor = {}\nhigh_freq_factor = {}\n",
                    toml_number(scaling.low_freq_factor), toml_number(scaling.high_freq_factor));
  }
  if (scaling.type != RopeType::yarn) return text;
  text +=
      fmt::format("beta_fast = {}\nbeta_slow = {}\ntruncate = {}\n", toml_number(scaling.beta_fast),
                  toml_number(scaling.beta_slow), scaling.truncate);
  if (scaling.attention_factor > 0) {
    text += fmt::format("attention_factor = {}\n", toml_number(scaling.attention_factor));
  }
  return text;
}

}  // namespace

ModelConfig read_model_table(TomlReader& document) {
  ModelConfig model;
  std::optional<TomlReader> table = document.table("model");
  if (!table) return model;
  const auto count = [&](const char* key, std::int64_t& value, std::int64_t minimum,
                         std::int64_t maximum) {
    value = table->integer(key, value, minimum, maximum);
  };
  count("vocab_size", model.vocab_size, 2, kLarge);
  count("hidden_size", model.hidden_size, 1, kLarge);
  count("intermediate_size", model.intermediate_size, 1, kLarge);
  count("num_hidden_layers", model.num_hidden_layers, 1, 10000);
  count("num_attention_heads", model.num_attention_heads, 1, kLarge);
  count("num_key_value_heads", model.num_key_value_heads, 1, kLarge);
  model.head_dim = model.hidden_size / model.num_attention_heads;
  count("head_dim", model.head_dim, 2, 1024);
  count("max_position_embeddings", model.max_position_embeddings, 1, kLarge);
  model.rope_theta = table->number("rope_theta", model.rope_theta, 1.0, 1e12);
  model.rope_scaling = read_rope_scaling(*table);
  model.rms_norm_eps = table->number("rms_norm_eps", model.rms_norm_eps, 0.0, 1.0);
  model.initializer_range = table->number("initializer_range", model.initializer_range, 0.0, 10.0);
  model.qkv_bias = table->boolean("qkv_bias", model.qkv_bias);
  model.o_bias = table->boolean("o_bias", model.o_bias);
  model.mlp_bias = table->boolean("mlp_bias", model.mlp_bias);
  model.qk_norm = table->boolean("qk_norm", model.qk_norm);
  model.tie_word_embeddings = table->boolean("tie_word_embeddings", model.tie_word_embeddings);
  table->finish();
  check_heads(*table, model);
  check_model_size(*table, model);
  return model;
}

std::string model_table_text(const ModelConfig& model) {
  std::string text = fmt::format(
      "\n[model]\nvocab_size = {}\nhidden_size = {}\nintermediate_size = {}\n"
      "num_hidden_layers = {}\nnum_attention_heads = {}\nnum_key_value_heads = {}\nhead_dim = {}\n"
      "max_position_embeddings = {}\nrope_theta = {}\nrms_norm_eps = {}\ninitializer_range = {}\n"
      "qkv_bias = {}\ntie_word_embeddings = {}\n",
      model.vocab_size, model.hidden_size, model.intermediate_size, model.num_hidden_layers,
      model.num_attention_heads, model.num_key_value_heads, model.head_dim,
      model.max_position_embeddings, toml_number(model.rope_theta), toml_number(model.rms_norm_eps),
      toml_number(model.initializer_range), model.qkv_bias, model.tie_word_embeddings);
  if (model.o_bias) text += "o_bias = true\n";
  if (model.mlp_bias) text += "mlp_bias = true\n";
  if (model.qk_norm) text += "qk_norm = true\n";
  return text + rope_scaling_text(model.rope_scaling);
}

ModelConfig parse_model_table(const std::string& text, const std::string& origin) {
  const toml::table root = parse_toml(text, origin);
  TomlReader document(root, "", origin);
  const ModelConfig model = read_model_table(document);
  document.finish();
  return model;
}

}  // namespace fp8lab
