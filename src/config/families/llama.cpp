// Llama 2 and 3, Mistral, Qwen2 and 2.5, Qwen3, OLMo 2: RMSNorm, SwiGLU and rotary positions. They
// differ in their biases, in the place of norms and in sliding windows.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "src/config/config_names.hpp"
#include "src/config/families/rotary_fields.hpp"

namespace fp8lab {
namespace {

using namespace rotary;  // NOLINT: what the families below share
using nlohmann::ordered_json;

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
  read_common(fields, origin, model, {.head_dim = 128});
  read_qwen_windows(fields, model);
}

void read_olmo2(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_common(fields, origin, model, {.epsilon = 1e-5});
  refuse_windows(fields, model);
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
