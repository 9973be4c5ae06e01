#include "src/config/families/rotary_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/config/config_names.hpp"

namespace fp8lab::rotary {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Reads the fields of `scaling`, which is the older rope_scaling or the newer rope_parameters.
RopeScaling parse_rope_scaling(const json& scaling, const std::string& where,
                               std::int64_t max_position_embeddings) {
  JsonFields fields(scaling, where);
  RopeScaling rope;
  const std::string older = fields.text("type", "");
  const std::string name = fields.text("rope_type", older.empty() ? "default" : older);
  if (!older.empty() && older != name) {
    fields.fail("type", {.verb = "=",
                         .found = fmt::format("'{}'", older),
                         .reason = fmt::format("contradicts 'rope_type' = '{}'", name)});
  }
  const std::optional<RopeType> type = value_for(kRopeTypeNames, name);
  if (!type) {
    fields.fail("rope_type", {.found = fmt::format("'{}'", name),
                              .accepted = "default, linear, dynamic, yarn, llama3"});
  }
  rope.type = *type;
  fields.ignore({"rope_theta"});  // read with the model's own fields
  fields.require("partial_rotary_factor", 1.0);
  const bool by_parts = rope.type == RopeType::yarn || rope.type == RopeType::llama3;
  const auto factor_default =
      rope.type == RopeType::unscaled ? std::optional<double>(1.0) : std::nullopt;
  rope.factor = fields.number("factor", factor_default, 1.0, 1e6);
  if (rope.type == RopeType::unscaled && rope.factor != 1.0) {
    fields.fail("factor", {.verb = "=",
                           .found = fmt::to_string(rope.factor),
                           .reason = "does nothing with rope_type 'default'",
                           .accepted = "1"});
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
      fields.fail("high_freq_factor", {.reason = "is not above low_freq_factor"});
    }
  }
  if (rope.type == RopeType::yarn) {
    rope.beta_fast = fields.number("beta_fast", rope.beta_fast, 1e-6, 1e6);
    rope.beta_slow = fields.number("beta_slow", rope.beta_slow, 1e-6, 1e6);
    rope.truncate = fields.boolean("truncate", true);
    rope.attention_factor = fields.number("attention_factor", 0.0, 1e-6, 1e6);
    if (rope.beta_slow >= rope.beta_fast)
      fields.fail("beta_fast", {.reason = "is not above beta_slow"});
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
  const json& whole = fields.value(key);
  if (whole.is_null()) return stated;
  const json& object = states_by_layer_type(whole) ? whole[kFullAttention] : whole;
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
    fields.fail("rope_scaling", {.reason = "contradicts 'rope_parameters'",
                                 .accepted = "one of them, or both with the same meaning"});
  }
  if (parameters.scaling) model.rope_scaling = *parameters.scaling;
  if (scaling.scaling) model.rope_scaling = *scaling.scaling;
  std::string said_by;
  std::optional<double> theta;
  const auto state = [&](const std::string& field, std::optional<double> value) {
    if (!value) return;
    if (theta && *theta != *value) {
      fields.fail(field, {.verb = "=",
                          .found = fmt::to_string(*value),
                          .reason = fmt::format("contradicts '{}' = {}", said_by, *theta)});
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
  model.set_layer_count(count("num_hidden_layers", std::nullopt, 1, 10000));
  model.num_attention_heads = count("num_attention_heads", std::nullopt, 1, 1 << 16);
  model.num_key_value_heads =
      count("num_key_value_heads", model.num_attention_heads, 1, model.num_attention_heads);
  const std::int64_t share = model.hidden_size / model.num_attention_heads;
  model.head_dim = count("head_dim", usual_head_dim.value_or(share), 2, 1024);
  model.max_position_embeddings = count("max_position_embeddings", std::nullopt, 1, kLarge);
  if (model.head_dim % 2 != 0) {
    fields.fail("head_dim",
                {.found = fmt::to_string(model.head_dim), .accepted = "an even number"});
  }
  require_possible_size(fields, "hidden_size", model);
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    fields.fail("num_key_value_heads",
                {.verb = "=",
                 .found = fmt::to_string(model.num_key_value_heads),
                 .reason = fmt::format("does not divide num_attention_heads = {}",
                                       model.num_attention_heads)});
  }
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

bool states_by_layer_type(const json& rope_parameters) {
  return rope_parameters.is_object() && rope_parameters.size() == 2 &&
         rope_parameters.contains(kFullAttention) && rope_parameters.contains(kSlidingAttention);
}

bool slides(const Sliding& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

std::optional<Sliding> read_layer_types(JsonFields& fields, std::int64_t layers) {
  const json& names = fields.value("layer_types");
  if (names.is_null()) return std::nullopt;
  if (!names.is_array() || names.size() != static_cast<std::size_t>(layers)) {
    fields.fail("layer_types",
                {.reason = fmt::format("is not one name for each of {} layers", layers)});
  }
  Sliding sliding;
  for (const json& name : names) {
    sliding.push_back(name == kSlidingAttention);
    if (name == kFullAttention || name == kSlidingAttention) continue;
    fields.fail("layer_types",
                {.verb = "holds",
                 .found = name.dump().substr(0, 80),
                 .accepted = fmt::format("\"{}\", \"{}\"", kFullAttention, kSlidingAttention)});
  }
  return sliding;
}

void set_windows(JsonFields& fields, std::int64_t window, const Sliding& sliding,
                 ModelConfig& model) {
  if (slides(sliding) && window == 0) {
    fields.fail("layer_types",
                {.reason = "holds \"sliding_attention\" without a 'sliding_window'"});
  }
  for (std::size_t i = 0; i < sliding.size(); ++i) {
    model.layers[i].attention.window = sliding[i] ? window : 0;
  }
}

void refuse_windows(JsonFields& fields, const ModelConfig& model) {
  fields.require("use_sliding_window", false);
  if (!fields.has("use_sliding_window") && fields.has("sliding_window")) {
    fields.fail("sliding_window", {.reason = "is not supported", .accepted = "null"});
  }
  fields.ignore({"sliding_window", "max_window_layers"});
  const auto sliding = read_layer_types(fields, model.layer_count());
  if (sliding && slides(*sliding)) {
    fields.fail("layer_types",
                {.reason = "holds \"sliding_attention\"", .accepted = "\"full_attention\""});
  }
}

void read_common(JsonFields& fields, const std::string& origin, ModelConfig& model,
                 const UsualFields& usual) {
  read_shape(fields, usual.head_dim, model);
  read_rope(fields, origin, model);
  model.rms_norm_eps = fields.number("rms_norm_eps", usual.epsilon, 0.0, 1.0);
  model.tie_word_embeddings = fields.boolean("tie_word_embeddings", usual.is_tied);
}

ordered_json write_common(const ModelConfig& model) {
  ordered_json config;
  config["hidden_size"] = model.hidden_size;
  config["intermediate_size"] = model.intermediate_size;
  config["num_hidden_layers"] = model.layer_count();
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

void write_attention_bias(const ModelConfig& model, ordered_json& config) {
  config["attention_bias"] = model.layers.front().attention.qkv_bias;
}

}  // namespace fp8lab::rotary
