// Llama 2 and 3, Mistral, Qwen2 and 2.5, Qwen3, OLMo 2: RMSNorm, SwiGLU and rotary positions. They
// differ in their biases, in the place of norms and in sliding windows.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

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

constexpr std::array<WeightName, 14> kOlmo2Weights = {{
    kWeights[0],
    {"layers.{}.attention.post_norm", "", "model.layers.{}.post_attention_layernorm", Kind::other},
    kWeights[2],
    kWeights[3],
    kWeights[4],
    kWeights[5],
    kWeights[6],
    kWeights[7],
    {"layers.{}.mlp.post_norm", "", "model.layers.{}.post_feedforward_layernorm", Kind::other},
    kWeights[9],
    kWeights[10],
    kWeights[11],
    kWeights[12],
    kWeights[13],
}};

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

/// For each layer, whether it has the window.
using Sliding = std::vector<bool>;

bool slides(const Sliding& layers) {
  return std::find(layers.begin(), layers.end(), true) != layers.end();
}

/// Reads `layer_types`, which every family accepts; nothing if it is absent.
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

/// Sets the window of the layers that slide; it has no effect if none does.
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

/// Llama has no windows: a file that states one is refused.
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

/// Mistral: one window for all layers, 4096 unless the file says otherwise; null: none.
void read_mistral_window(JsonFields& fields, ModelConfig& model) {
  constexpr std::int64_t kUsual = 4096;
  fields.require("use_sliding_window", true);
  const bool is_stated = fields.is_present("sliding_window");
  const std::int64_t window = is_stated && !fields.has("sliding_window")
                                  ? 0
                                  : fields.integer("sliding_window", kUsual, 1, kLarge);
  const Sliding usual(model.layers.size(), window > 0);
  const auto stated = read_layer_types(fields, model.layer_count());
  if (stated && *stated != usual) {
    fields.fail("layer_types",
                {.reason = "contradicts 'sliding_window'",
                 .accepted = fmt::format("\"{}\" for every layer",
                                         window > 0 ? kSlidingAttention : kFullAttention)});
  }
  set_windows(fields, window, usual, model);
}

/// Qwen2 and Qwen3: with use_sliding_window the layers from max_window_layers on slide, unless
/// layer_types says which.
void read_qwen_windows(JsonFields& fields, ModelConfig& model) {
  constexpr std::int64_t kUsual = 4096, kUsualFirst = 28;
  const bool uses = fields.boolean("use_sliding_window", false);
  const bool is_null = fields.is_present("sliding_window") && !fields.has("sliding_window");
  const std::int64_t window =
      is_null || !uses ? 0 : fields.integer("sliding_window", kUsual, 1, kLarge);
  const std::int64_t first = fields.integer("max_window_layers", kUsualFirst, 0, kLarge);
  fields.ignore({"sliding_window"});
  Sliding sliding;
  for (std::int64_t layer = 0; layer < model.layer_count(); ++layer) {
    sliding.push_back(window > 0 && layer >= first);
  }
  set_windows(fields, window,
              read_layer_types(fields, model.layer_count()).value_or(std::move(sliding)), model);
}

/// Reads the fields that the families share. The last two are the values of absent fields.
void read_common(JsonFields& fields, const std::string& origin, ModelConfig& model,
                 std::optional<std::int64_t> usual_head_dim = std::nullopt,
                 double usual_epsilon = 1e-6) {
  read_shape(fields, usual_head_dim, model);
  read_rope(fields, origin, model);
  model.rms_norm_eps = fields.number("rms_norm_eps", usual_epsilon, 0.0, 1.0);
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
  read_common(fields, origin, model);
  refuse_windows(fields, model);
  fields.require("max_sequence_length", model.max_position_embeddings);
}

void read_mistral(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, model);
  read_mistral_window(fields, model);
}

void read_qwen2(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, model);
  read_qwen_windows(fields, model);
}

void read_qwen3(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, model, 128);
  read_qwen_windows(fields, model);
}

void read_olmo2(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, model, std::nullopt, 1e-5);
  refuse_windows(fields, model);
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

ordered_json write_llama(const ModelConfig& model) {
  ordered_json config = write_common(model);
  write_attention_bias(model, config);
  config["mlp_bias"] = model.layers.front().feed_forward.bias;
  return config;
}

ordered_json write_mistral(const ModelConfig& model) {
  ordered_json config = write_common(model);
  config["sliding_window"] = model.layers.front().attention.window;
  return config;
}

void write_qwen_windows(const ModelConfig& model, ordered_json& config) {
  std::int64_t window = 0;
  bool are_equal = true;
  for (const LayerSpec& layer : model.layers) {
    window = std::max(window, layer.attention.window);
    are_equal = are_equal && layer.attention.window == model.layers.front().attention.window;
  }
  config["use_sliding_window"] = window > 0;
  if (window == 0) return;
  config["sliding_window"] = window;
  if (are_equal) {
    config["max_window_layers"] = 0;
    return;
  }
  for (const LayerSpec& layer : model.layers) {
    config["layer_types"].push_back(layer.attention.window > 0 ? kSlidingAttention
                                                               : kFullAttention);
  }
}

ordered_json write_qwen2(const ModelConfig& model) {
  ordered_json config = write_common(model);
  write_qwen_windows(model, config);
  return config;
}

ordered_json write_qwen3(const ModelConfig& model) {
  ordered_json config = write_common(model);
  write_attention_bias(model, config);
  write_qwen_windows(model, config);
  return config;
}

ordered_json write_olmo2(const ModelConfig& model) {
  ordered_json config = write_common(model);
  write_attention_bias(model, config);
  return config;
}

}  // namespace

const Family kLlama = {.model_type = "llama",
                       .architecture = "LlamaForCausalLM",
                       .layer = {.attention = {.qkv_bias = false}, .feed_forward = {}},
                       .states_attention_bias = true,
                       .states_mlp_bias = true,
                       .read = read_llama,
                       .write = write_llama,
                       .weights = kWeights,
                       .idle = kIdleLlama};
const Family kMistral = {.model_type = "mistral",
                         .architecture = "MistralForCausalLM",
                         .layer = {.attention = {.qkv_bias = false}, .feed_forward = {}},
                         .windows = Windows::every,
                         .read = read_mistral,
                         .write = write_mistral,
                         .weights = kWeights,
                         .idle = kIdle};
const Family kQwen2 = {.model_type = "qwen2",
                       .architecture = "Qwen2ForCausalLM",
                       .layer = {.attention = {.qkv_bias = true}, .feed_forward = {}},
                       .windows = Windows::any,
                       .read = read_qwen2,
                       .write = write_qwen2,
                       .weights = kWeights,
                       .idle = kIdle};
const Family kQwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .layer = {.attention = {.qk_norm = QkNorm::head, .qkv_bias = false}, .feed_forward = {}},
    .windows = Windows::any,
    .states_attention_bias = true,
    .read = read_qwen3,
    .write = write_qwen3,
    .weights = kWeights,
    .idle = kIdle};
const Family kOlmo2 = {.model_type = "olmo2",
                       .architecture = "Olmo2ForCausalLM",
                       .layer = {.norm_place = NormPlace::post,
                                 .attention = {.qk_norm = QkNorm::all_heads, .qkv_bias = false},
                                 .feed_forward = {}},
                       .states_attention_bias = true,
                       .read = read_olmo2,
                       .write = write_olmo2,
                       .weights = kOlmo2Weights,
                       .idle = kIdle};

}  // namespace fp8lab
