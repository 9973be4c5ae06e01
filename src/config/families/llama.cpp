// Llama 2 and 3, Qwen2 and 2.5, Qwen3: RMSNorm, SwiGLU and rotary positions. They differ in their
// biases and in the norms of heads.
#include <fmt/format.h>

#include <array>

#include "src/config/config_names.hpp"
#include "src/config/families/family.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Kind = WeightName::Kind;

constexpr std::int64_t kLarge = std::int64_t{1} << 40;

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

/// Reads the fields of `scaling`, which is the older rope_scaling or the newer rope_parameters.
RopeScaling parse_rope_scaling(const json& scaling, const std::string& where,
                               std::int64_t max_position_embeddings) {
  JsonFields fields(scaling, where);
  RopeScaling rope;
  const std::string older = fields.text("type", "");
  const std::string name = fields.text("rope_type", older.empty() ? "default" : older);
  if (!older.empty() && older != name) {
    fields.fail("type", fmt::format("= '{}' contradicts 'rope_type' = '{}'", older, name));
  }
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
  if (rope.type == RopeType::unscaled && rope.factor != 1.0) {
    fields.fail("factor", fmt::format("= {} does nothing with rope_type 'default'; accepted: 1",
                                      rope.factor));
  }
  // If yarn states no original length, transformers uses the model's length.
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

/// Base and scaling as stated by one field; nothing if the field does not state them.
struct StatedRope {
  std::string field;
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
};

StatedRope stated_rope(JsonFields& fields, const std::string& origin, const char* key,
                       std::int64_t max_position_embeddings) {
  StatedRope stated{key, std::nullopt, std::nullopt};
  const json& object = fields.value(key);
  if (object.is_null()) return stated;
  const std::string where = fmt::format("{}: {}", origin, key);
  stated.scaling = parse_rope_scaling(object, where, max_position_embeddings);
  JsonFields inner(object, where);
  if (inner.has("rope_theta")) stated.theta = inner.number("rope_theta", std::nullopt, 1.0, 1e12);
  return stated;
}

/// Older files state rope_theta and rope_scaling, those of transformers 5 state rope_parameters.
/// Readers differ in which of them they use if a file has both.
void read_rope(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  const StatedRope parameters =
      stated_rope(fields, origin, "rope_parameters", model.max_position_embeddings);
  const StatedRope scaling =
      stated_rope(fields, origin, "rope_scaling", model.max_position_embeddings);
  if (parameters.scaling && scaling.scaling && *parameters.scaling != *scaling.scaling) {
    fields.fail("rope_scaling",
                "contradicts 'rope_parameters'; accepted: one of them, or both "
                "with the same meaning");
  }
  if (parameters.scaling) model.rope_scaling = *parameters.scaling;
  if (scaling.scaling) model.rope_scaling = *scaling.scaling;
  std::string said_by;
  std::optional<double> theta;
  const auto state = [&](const std::string& field, std::optional<double> value) {
    if (!value) return;
    if (theta && *theta != *value) {
      fields.fail(field, fmt::format("= {} contradicts '{}' = {}", *value, said_by, *theta));
    }
    said_by = field;
    theta = value;
  };
  if (fields.has("rope_theta")) {
    state("rope_theta", fields.number("rope_theta", std::nullopt, 1.0, 1e12));
  }
  state("rope_parameters.rope_theta", parameters.theta);
  state("rope_scaling.rope_theta", scaling.theta);
  model.rope_theta = theta.value_or(model.rope_theta);
}

/// `usual_head_dim` is the value of an absent field; nothing: hidden_size / num_attention_heads.
void read_shape(JsonFields& fields, std::optional<std::int64_t> usual_head_dim,
                ModelConfig& model) {
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
  model.head_dim = count("head_dim", usual_head_dim.value_or(share), 2, 1024);
  model.max_position_embeddings = count("max_position_embeddings", std::nullopt, 1, kLarge);
  if (model.head_dim % 2 != 0) {
    fields.fail("head_dim", fmt::format("is {}; accepted: an even number", model.head_dim));
  }
  require_possible_size(fields, "hidden_size", model);
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    fields.fail("num_key_value_heads",
                fmt::format("= {} does not divide num_attention_heads = {}",
                            model.num_key_value_heads, model.num_attention_heads));
  }
}

/// Refuses sliding windows: only attention over all earlier tokens is supported.
void refuse_windows(JsonFields& fields, std::int64_t layers) {
  fields.require("use_sliding_window", false);
  if (!fields.has("use_sliding_window") && fields.has("sliding_window")) {
    fields.fail("sliding_window", "is not supported; accepted: null");
  }
  fields.ignore({"sliding_window", "max_window_layers"});
  const json& types = fields.value("layer_types");
  if (!types.is_null() && (!types.is_array() || types.size() != static_cast<std::size_t>(layers))) {
    fields.fail("layer_types", fmt::format("is not one name for each of {} layers", layers));
  }
  for (const json& type : types) {
    if (!type.is_string() || type.get_ref<const std::string&>() != "full_attention") {
      fields.fail("layer_types",
                  fmt::format("holds {}; accepted: \"full_attention\"", type.dump().substr(0, 80)));
    }
  }
}

/// Reads the fields that the three families share.
void read_common(JsonFields& fields, const std::string& origin,
                 std::optional<std::int64_t> usual_head_dim, ModelConfig& model) {
  read_shape(fields, usual_head_dim, model);
  read_rope(fields, origin, model);
  refuse_windows(fields, model.num_hidden_layers);
  model.rms_norm_eps = fields.number("rms_norm_eps", 1e-6, 0.0, 1.0);
  model.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
}

constexpr std::array<IdleField, 5> kIdle = {{
    {"hidden_act", "\"silu\""},
    {"attention_dropout", "0.0"},
    {"use_mrope", "false"},
    {"pretraining_tp", "1"},
    {"partial_rotary_factor", "1.0"},
}};

/// The last two fields are leftovers of the tools that wrote the files.
constexpr std::array<IdleField, 7> kIdleLlama = {{
    kIdle[0],
    kIdle[1],
    kIdle[2],
    kIdle[3],
    kIdle[4],
    {"is_llama_config", "true"},
    {"rope_interleaved", "false"},
}};

void read_llama(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, std::nullopt, model);
  fields.require("max_sequence_length", model.max_position_embeddings);
  model.qkv_bias = model.o_bias = fields.boolean("attention_bias", false);
  model.mlp_bias = fields.boolean("mlp_bias", false);
}

void read_qwen2(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, std::nullopt, model);
  model.qkv_bias = true;
}

void read_qwen3(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, 128, model);
  model.qk_norm = true;
  model.qkv_bias = model.o_bias = fields.boolean("attention_bias", false);
}

bool has_structure(const ModelConfig& model) {
  return model.norm == NormKind::rmsnorm && model.feed_forward == FeedForwardKind::swiglu &&
         model.positions == PositionKind::rope;
}

bool is_llama(const ModelConfig& model) {
  return has_structure(model) && !model.qk_norm && model.qkv_bias == model.o_bias;
}

bool is_qwen2(const ModelConfig& model) {
  return has_structure(model) && !model.qk_norm && model.qkv_bias && !model.o_bias &&
         !model.mlp_bias;
}

bool is_qwen3(const ModelConfig& model) {
  return has_structure(model) && model.qk_norm && model.qkv_bias == model.o_bias && !model.mlp_bias;
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

ordered_json write_common(const ModelConfig& model) {
  ordered_json config;
  config["hidden_size"] = model.hidden_size;
  config["intermediate_size"] = model.intermediate_size;
  config["num_hidden_layers"] = model.num_hidden_layers;
  config["num_attention_heads"] = model.num_attention_heads;
  config["num_key_value_heads"] = model.num_key_value_heads;
  config["head_dim"] = model.head_dim;
  config["max_position_embeddings"] = model.max_position_embeddings;
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = model.rms_norm_eps;
  config["rope_theta"] = model.rope_theta;
  config["rope_scaling"] = rope_scaling_json(model.rope_scaling);
  config["attention_dropout"] = 0.0;
  return config;
}

ordered_json write_llama(const ModelConfig& model) {
  ordered_json config = write_common(model);
  config["attention_bias"] = model.qkv_bias;
  config["mlp_bias"] = model.mlp_bias;
  return config;
}

ordered_json write_qwen2(const ModelConfig& model) {
  ordered_json config = write_common(model);
  config["use_sliding_window"] = false;
  return config;
}

ordered_json write_qwen3(const ModelConfig& model) {
  ordered_json config = write_common(model);
  config["attention_bias"] = model.qkv_bias;
  config["use_sliding_window"] = false;
  return config;
}

}  // namespace

const Family kLlama = {"llama",     "LlamaForCausalLM", read_llama, has_structure, is_llama,
                       write_llama, kWeights,           "",         kIdleLlama};
const Family kQwen2 = {"qwen2",     "Qwen2ForCausalLM", read_qwen2, has_structure, is_qwen2,
                       write_qwen2, kWeights,           "",         kIdle};
const Family kQwen3 = {"qwen3",     "Qwen3ForCausalLM", read_qwen3, has_structure, is_qwen3,
                       write_qwen3, kWeights,           "",         kIdle};

}  // namespace fp8lab
