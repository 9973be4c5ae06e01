#include "src/config/hugging_face.hpp"

#include <fmt/format.h>

#include <array>
#include <system_error>

#include "emulation/base/error.hpp"
#include "src/config/config_names.hpp"
#include "src/config/json_fields.hpp"
#include "src/config/nearest_name.hpp"
#include "src/config/size_limits.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/file_kind.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::int64_t kLarge = std::int64_t{1} << 40;

enum class Family { llama, qwen2, qwen3 };

struct FamilyName {
  Family family;
  const char* model_type;
  const char* architecture;
};
constexpr std::array<FamilyName, 3> kFamilies = {{{Family::llama, "llama", "LlamaForCausalLM"},
                                                  {Family::qwen2, "qwen2", "Qwen2ForCausalLM"},
                                                  {Family::qwen3, "qwen3", "Qwen3ForCausalLM"}}};

Family read_family(JsonFields& fields) {
  const std::string type = fields.text("model_type", "");
  for (const FamilyName& name : kFamilies) {
    if (type != name.model_type) continue;
    fields.require("architectures", json::array({name.architecture}));
    return name.family;
  }
  fields.fail("model_type",
              fmt::format("is '{}'{}; accepted: llama, qwen2, qwen3", type.substr(0, 80),
                          did_you_mean(type, "llama, qwen2, qwen3")));
}

/// Fields of `scaling`, of the older rope_scaling or the newer rope_parameters.
RopeScaling parse_rope_scaling(const json& scaling, const std::string& where,
                               std::int64_t max_position_embeddings) {
  JsonFields fields(scaling, where);
  RopeScaling rope;
  const std::string name = fields.text("rope_type", fields.text("type", "default"));
  bool known = false;
  for (const Named<RopeType>& entry : kRopeTypeNames) {
    if (entry.name != name) continue;
    rope.type = entry.value;
    known = true;
  }
  if (!known) {
    fields.fail("rope_type", fmt::format("is '{}'; accepted: default, linear, dynamic, yarn, "
                                         "llama3",
                                         name));
  }
  fields.ignore({"rope_theta"});  // read with the model's own fields
  fields.require("partial_rotary_factor", 1.0);
  const bool by_parts = rope.type == RopeType::yarn || rope.type == RopeType::llama3;
  const auto factor_default =
      rope.type == RopeType::unscaled ? std::optional<double>(1.0) : std::nullopt;
  rope.factor = fields.number("factor", factor_default, 1.0, 1e6);
  if (rope.type == RopeType::unscaled) rope.factor = 1.0;
  // transformers takes the model's length where yarn has none.
  const auto length_default = rope.type == RopeType::llama3
                                  ? std::nullopt
                                  : std::optional<std::int64_t>(max_position_embeddings);
  const std::int64_t length =
      fields.integer("original_max_position_embeddings", length_default, 1, kLarge);
  if (by_parts) rope.original_max_position_embeddings = length;
  if (rope.type == RopeType::llama3) {
    rope.low_freq_factor = fields.number("low_freq_factor", std::nullopt, 1e-6, 1e6);
    rope.high_freq_factor = fields.number("high_freq_factor", std::nullopt, 1e-6, 1e6);
    if (rope.low_freq_factor >= rope.high_freq_factor) {
      fields.fail("high_freq_factor", "is not above low_freq_factor");
    }
  }
  if (rope.type == RopeType::yarn) {
    rope.beta_fast = fields.number("beta_fast", rope.beta_fast, 1e-6, 1e6);
    rope.beta_slow = fields.number("beta_slow", rope.beta_slow, 1e-6, 1e6);
    rope.truncate = fields.boolean("truncate", true);
    rope.attention_factor = fields.number("attention_factor", 0.0, 1e-6, 1e6);
    if (rope.beta_slow >= rope.beta_fast) fields.fail("beta_fast", "is not above beta_slow");
  }
  fields.finish();
  return rope;
}

void read_rope(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  fields.require("partial_rotary_factor", 1.0);
  const json& parameters = fields.value("rope_parameters");  // transformers 5
  const json& scaling = fields.value("rope_scaling");
  model.rope_theta = fields.number("rope_theta", model.rope_theta, 1.0, 1e12);
  if (!parameters.is_null()) {
    JsonFields inner(parameters, origin + ": rope_parameters");
    model.rope_theta = inner.number("rope_theta", model.rope_theta, 1.0, 1e12);
    model.rope_scaling =
        parse_rope_scaling(parameters, origin + ": rope_parameters", model.max_position_embeddings);
  } else if (!scaling.is_null()) {
    model.rope_scaling =
        parse_rope_scaling(scaling, origin + ": rope_scaling", model.max_position_embeddings);
  }
}

void read_shape(JsonFields& fields, Family family, ModelConfig& model) {
  const auto count = [&](const char* key, std::optional<std::int64_t> fallback,
                         std::int64_t minimum, std::int64_t maximum) {
    return fields.integer(key, fallback, minimum, maximum);
  };
  model.vocab_size = count("vocab_size", std::nullopt, 2, INT32_MAX);
  model.hidden_size = count("hidden_size", std::nullopt, 1, 1 << 20);
  model.intermediate_size = count("intermediate_size", std::nullopt, 1, 1 << 22);
  model.num_hidden_layers = count("num_hidden_layers", std::nullopt, 1, 10000);
  model.num_attention_heads = count("num_attention_heads", std::nullopt, 1, 1 << 16);
  model.num_key_value_heads =
      count("num_key_value_heads", model.num_attention_heads, 1, model.num_attention_heads);
  const std::int64_t share = model.hidden_size / model.num_attention_heads;
  model.head_dim = count("head_dim", family == Family::qwen3 ? 128 : share, 2, 1024);
  model.max_position_embeddings = count("max_position_embeddings", std::nullopt, 1, kLarge);
  if (model.head_dim % 2 != 0) {
    fields.fail("head_dim", fmt::format("is {}; accepted: an even number", model.head_dim));
  }
  if (const double size = approximate_parameters(model); size > kMostParameters) {
    fields.fail("hidden_size", fmt::format("and the other sizes make {:.3g} parameters; accepted: "
                                           "at most {:.3g}",
                                           size, kMostParameters));
  }
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    fields.fail("num_key_value_heads",
                fmt::format("= {} does not divide num_attention_heads = {}",
                            model.num_key_value_heads, model.num_attention_heads));
  }
}

void read_biases(JsonFields& fields, Family family, ModelConfig& model) {
  model.qk_norm = family == Family::qwen3;
  if (family == Family::qwen2) {
    model.qkv_bias = true;
    return;
  }
  model.qkv_bias = model.o_bias = fields.boolean("attention_bias", false);
  if (family == Family::llama) model.mlp_bias = fields.boolean("mlp_bias", false);
}

/// Attention over all earlier tokens is the only one.
void refuse_windows(JsonFields& fields) {
  fields.require("use_sliding_window", false);
  if (!fields.has("use_sliding_window") && fields.has("sliding_window")) {
    fields.fail("sliding_window", "is not supported; accepted: null");
  }
  fields.ignore({"sliding_window", "max_window_layers"});
  const json& types = fields.value("layer_types");
  for (const json& type : types) {
    if (type != "full_attention") {
      fields.fail("layer_types",
                  fmt::format("holds {}; accepted: \"full_attention\"", type.dump().substr(0, 80)));
    }
  }
}

/// Fields without a part in the arithmetic of training.
void ignore_harmless(JsonFields& fields) {
  fields.ignore({"_name_or_path",
                 "transformers_version",
                 "torch_dtype",
                 "dtype",
                 "use_cache",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "unk_token_id",
                 "cls_token_id",
                 "sep_token_id",
                 "decoder_start_token_id",
                 "tokenizer_class",
                 "task_specific_params",
                 "_attn_implementation",
                 "_attn_implementation_autoset",
                 "attn_implementation",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "torchscript",
                 "is_decoder",
                 "is_encoder_decoder",
                 "chunk_size_feed_forward",
                 "problem_type",
                 "id2label",
                 "label2id",
                 "finetuning_task",
                 "prefix",
                 "model_max_length",
                 "unsloth_version",
                 "unsloth_fixed",
                 "quantization_config"});
}

ModelConfig parse(const json& document, const std::string& origin) {
  JsonFields fields(document, origin);
  ModelConfig model;
  const Family family = read_family(fields);
  read_shape(fields, family, model);
  read_rope(fields, origin, model);
  read_biases(fields, family, model);
  refuse_windows(fields);
  model.rms_norm_eps = fields.number("rms_norm_eps", 1e-6, 0.0, 1.0);
  model.initializer_range = fields.number("initializer_range", 0.02, 0.0, 10.0);
  model.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  fields.require("hidden_act", "silu");
  fields.require("attention_dropout", 0.0);
  fields.require("use_mrope", false);
  fields.require("pretraining_tp", 1);
  fields.require("is_cross_attention_model", false);
  fields.require("add_cross_attention", false);
  fields.require("tie_encoder_decoder", false);
  fields.require("pruned_heads", json::object());
  ignore_harmless(fields);
  fields.finish();
  return model;
}

const FamilyName& family_of(const ModelConfig& model) {
  const bool same_bias = model.qkv_bias == model.o_bias;
  if (model.qk_norm && same_bias && !model.mlp_bias) return kFamilies[2];
  if (!model.qk_norm && model.qkv_bias && !model.o_bias && !model.mlp_bias) return kFamilies[1];
  if (!model.qk_norm && same_bias) return kFamilies[0];
  throw Error(
      fmt::format("no family of transformers has qkv_bias = {}, o_bias = {}, mlp_bias = {} and "
                  "qk_norm = {}; accepted: qkv_bias alone (qwen2), qkv_bias = o_bias (llama), "
                  "qk_norm without mlp_bias (qwen3)",
                  model.qkv_bias, model.o_bias, model.mlp_bias, model.qk_norm));
}

ordered_json rope_scaling_json(const RopeScaling& rope) {
  if (rope.type == RopeType::unscaled) return nullptr;
  ordered_json scaling;
  scaling["rope_type"] = word_for(kRopeTypeNames, rope.type);
  scaling["factor"] = rope.factor;
  if (rope.original_max_position_embeddings > 0) {
    scaling["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  if (rope.type == RopeType::llama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == RopeType::yarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    if (!rope.truncate) scaling["truncate"] = false;
    if (rope.attention_factor > 0) scaling["attention_factor"] = rope.attention_factor;
  }
  return scaling;
}

}  // namespace

bool is_hugging_face_folder(const std::filesystem::path& path) {
  return is_file(path / "config.json");
}

ModelConfig read_hugging_face_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  return parse(read_json_object(file), file.string());
}

ModelConfig parse_hugging_face_config(const std::string& text, const std::string& origin) {
  return parse(parse_json(text, origin), origin);
}

nlohmann::ordered_json hugging_face_config(const ModelConfig& model, const std::string& dtype) {
  const FamilyName& family = family_of(model);
  ordered_json config = {{"architectures", ordered_json::array({family.architecture})},
                         {"model_type", family.model_type},
                         {"vocab_size", model.vocab_size},
                         {"hidden_size", model.hidden_size},
                         {"intermediate_size", model.intermediate_size},
                         {"num_hidden_layers", model.num_hidden_layers},
                         {"num_attention_heads", model.num_attention_heads},
                         {"num_key_value_heads", model.num_key_value_heads},
                         {"head_dim", model.head_dim},
                         {"max_position_embeddings", model.max_position_embeddings},
                         {"hidden_act", "silu"},
                         {"rms_norm_eps", model.rms_norm_eps},
                         {"rope_theta", model.rope_theta},
                         {"rope_scaling", rope_scaling_json(model.rope_scaling)},
                         {"initializer_range", model.initializer_range},
                         {"tie_word_embeddings", model.tie_word_embeddings},
                         {"attention_dropout", 0.0},
                         {"torch_dtype", dtype},
                         {"use_cache", true}};
  if (family.family != Family::qwen2) config.push_back({"attention_bias", model.qkv_bias});
  if (family.family == Family::llama) config.push_back({"mlp_bias", model.mlp_bias});
  if (family.family != Family::llama) config.push_back({"use_sliding_window", false});
  return config;
}

}  // namespace fp8lab
