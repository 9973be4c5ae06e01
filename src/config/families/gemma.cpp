// Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118) and the text model of Gemma 3
// (arXiv:2503.19786): GEGLU, embeddings times sqrt(hidden_size), and RMSNorms whose weight is 1 + w
// with the w of the files. Gemma 2 and 3 have norms on both sides of a block, a factor of scores of
// their own and windows. What soft-caps logits, and a second base of frequencies, is refused.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "src/config/config_names.hpp"
#include "src/config/families/rotary_fields.hpp"

namespace fp8lab {
namespace {

using nlohmann::ordered_json;
using rotary::Kind;
using rotary::kWeights;
using rotary::Sliding;

constexpr const char* kGelu = "gelu_pytorch_tanh";
constexpr std::int64_t kUsualScalar = 256;  ///< query_pre_attn_scalar

constexpr std::array<WeightName, 16> kGemma2Weights = {{
    kWeights[0],
    kWeights[1],
    kWeights[2],
    kWeights[3],
    kWeights[4],
    kWeights[5],
    kWeights[6],
    kWeights[7],
    {"layers.{}.attention.post_norm", "", "model.layers.{}.post_attention_layernorm", Kind::other},
    {"layers.{}.mlp.norm", "", "model.layers.{}.pre_feedforward_layernorm", Kind::other},
    {"layers.{}.mlp.post_norm", "", "model.layers.{}.post_feedforward_layernorm", Kind::other},
    kWeights[9],
    kWeights[10],
    kWeights[11],
    kWeights[12],
    kWeights[13],
}};

constexpr std::array<IdleField, 2> kGemmaIdle = {{
    {"attention_dropout", "0.0"},
    {"use_bidirectional_attention", "false"},
}};
constexpr std::array<IdleField, 3> kGemma2Idle = {{
    kGemmaIdle[0],
    kGemmaIdle[1],
    {"cache_implementation", "*"},
}};
/// transformers writes the last one beside layer_types and does not read it.
constexpr std::array<IdleField, 4> kGemma3Idle = {{
    kGemma2Idle[0],
    kGemma2Idle[1],
    kGemma2Idle[2],
    {"_sliding_window_pattern", "*"},
}};

/// "gelu" in older files means the tanh form as well, as transformers reads it.
void read_gelu(JsonFields& fields) {
  const std::string older = fields.text("hidden_act", kGelu);
  if (older != kGelu && older != "gelu") {
    fields.fail("hidden_act", {.found = fmt::format("'{}'", older.substr(0, 80)),
                               .accepted = fmt::format("{}, gelu", kGelu)});
  }
  const std::string name = fields.text("hidden_activation", kGelu);
  if (name != kGelu) {
    fields.fail("hidden_activation",
                {.found = fmt::format("'{}'", name.substr(0, 80)), .accepted = kGelu});
  }
}

void read_gemma_fields(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  rotary::read_common(fields, origin, model, {.head_dim = 256, .is_tied = true});
  read_gelu(fields);
  model.zero_centered_norms = true;
  model.embedding_factor = std::sqrt(static_cast<double>(model.hidden_size));
}

void read_gemma(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_gemma_fields(fields, origin, model);
  rotary::refuse_windows(fields, model);
}

/// `usual` is what an absent field means; 0: nothing.
void refuse_soft_cap(JsonFields& fields, const char* key, double usual) {
  if (fields.is_present(key) ? !fields.has(key) : usual == 0.0) {
    fields.ignore({key});
    return;
  }
  const double cap = fields.number(key, usual, 0.0, 1e6);
  fields.fail(key, {.verb = "=",
                    .found = fmt::to_string(cap),
                    .reason = "soft-caps logits, which nothing here does",
                    .accepted = "null"});
}

/// Scores are multiplied by 1 / sqrt(query_pre_attn_scalar).
void read_score_factor(JsonFields& fields, ModelConfig& model) {
  const std::int64_t scalar =
      fields.integer("query_pre_attn_scalar", kUsualScalar, 1, rotary::kLarge);
  if (scalar == model.head_dim) return;
  model.edit_layers([&](LayerSpec& layer) {
    layer.attention.softmax_scale = 1.0 / std::sqrt(static_cast<double>(scalar));
  });
}

/// Returns the query_pre_attn_scalar of the first layer's factor of scores.
std::int64_t score_scalar(const ModelConfig& model) {
  const double scale = model.layers.front().attention.softmax_scale;
  return scale == 0.0 ? model.head_dim : std::llround(1.0 / (scale * scale));
}

/// Every layer but each `period`-th slides, unless layer_types says which.
void read_gemma_windows(JsonFields& fields, std::int64_t period, ModelConfig& model) {
  constexpr std::int64_t kUsual = 4096;
  const bool is_null = fields.is_present("sliding_window") && !fields.has("sliding_window");
  const std::int64_t window =
      is_null ? 0 : fields.integer("sliding_window", kUsual, 1, rotary::kLarge);
  fields.ignore({"sliding_window"});
  Sliding usual;
  for (std::int64_t layer = 1; layer <= model.layer_count(); ++layer) {
    usual.push_back(layer % period != 0);
  }
  rotary::set_windows(
      fields, window,
      rotary::read_layer_types(fields, model.layer_count()).value_or(std::move(usual)), model);
}

void read_gemma2(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  read_gemma_fields(fields, origin, model);
  refuse_soft_cap(fields, "attn_logit_softcapping", 50.0);
  refuse_soft_cap(fields, "final_logit_softcapping", 30.0);
  read_score_factor(fields, model);
  read_gemma_windows(fields, 2, model);
}

bool has_windows(const ModelConfig& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const LayerSpec& layer) { return layer.attention.window > 0; });
}

/// Layers with windows have frequencies of their own: unscaled ones of base rope_local_base_freq,
/// or what rope_parameters has for them. Supported is one rule for all layers.
void read_gemma3(JsonFields& fields, const std::string& origin, ModelConfig& model) {
  constexpr double kUsualTheta = 1e6, kUsualLocalTheta = 1e4;
  constexpr std::int64_t kUsualPeriod = 6;
  const char* const accepted = "one rule for all layers, or layer_types all \"full_attention\"";
  model.rope_theta = kUsualTheta;
  read_gemma_fields(fields, origin, model);
  refuse_soft_cap(fields, "attn_logit_softcapping", 0.0);
  refuse_soft_cap(fields, "final_logit_softcapping", 0.0);
  read_score_factor(fields, model);
  read_gemma_windows(fields, fields.integer("sliding_window_pattern", kUsualPeriod, 1, 10000),
                     model);
  const double local = fields.number("rope_local_base_freq", kUsualLocalTheta, 1.0, 1e12);
  if (!has_windows(model)) return;
  const nlohmann::json& rope = fields.value("rope_parameters");
  if (rotary::states_by_layer_type(rope)) {
    if (rope[kFullAttention] == rope[kSlidingAttention]) return;
    fields.fail("rope_parameters",
                {.reason = "differ between \"sliding_attention\" and \"full_attention\"",
                 .accepted = accepted});
  }
  if (local != model.rope_theta) {
    fields.fail("rope_local_base_freq",
                {.verb = "=",
                 .found = fmt::to_string(local),
                 .reason = fmt::format("is the base of layers with sliding attention beside "
                                       "rope_theta = {} of the others",
                                       model.rope_theta),
                 .accepted = accepted});
  }
  if (model.rope_scaling.type != RopeType::unscaled) {
    fields.fail("rope_scaling",
                {.reason = "is of layers with full attention alone", .accepted = accepted});
  }
}

/// One factor of scores for all layers, the root of a whole number.
bool has_gemma2_shape(const ModelConfig& model) {
  const double scale = model.layers.front().attention.softmax_scale;
  const std::int64_t scalar = score_scalar(model);
  return scale == 0.0 || (scalar > 0 && scalar != model.head_dim &&
                          1.0 / std::sqrt(static_cast<double>(scalar)) == scale);
}

bool has_gemma3_shape(const ModelConfig& model) {
  return has_gemma2_shape(model) &&
         (!has_windows(model) || model.rope_scaling.type == RopeType::unscaled);
}

ordered_json write_gemma(const ModelConfig& model) {
  ordered_json config = rotary::write_common(model);
  config["hidden_act"] = kGelu;
  rotary::write_attention_bias(model, config);
  return config;
}

ordered_json write_gemma2(const ModelConfig& model) {
  ordered_json config = write_gemma(model);
  config["hidden_activation"] = kGelu;
  config["attn_logit_softcapping"] = nullptr;
  config["final_logit_softcapping"] = nullptr;
  config["query_pre_attn_scalar"] = score_scalar(model);
  std::int64_t window = 0;
  for (const LayerSpec& layer : model.layers) {
    window = std::max(window, layer.attention.window);
    config["layer_types"].push_back(layer.attention.window > 0 ? kSlidingAttention
                                                               : kFullAttention);
  }
  if (window > 0) config["sliding_window"] = window;
  return config;
}

ordered_json write_gemma3(const ModelConfig& model) {
  ordered_json config = write_gemma2(model);
  if (has_windows(model)) config["rope_local_base_freq"] = model.rope_theta;
  return config;
}

constexpr FeedForwardSpec kGeglu = {FeedForwardKind::geglu_tanh, false};

}  // namespace

const Family kGemma = {.model_type = "gemma",
                       .architecture = "GemmaForCausalLM",
                       .layer = {.attention = {.qkv_bias = false}, .feed_forward = kGeglu},
                       .states_attention_bias = true,
                       .zero_centered_norms = true,
                       .scales_embedding = true,
                       .read = read_gemma,
                       .write = write_gemma,
                       .weights = kWeights,
                       .idle = kGemmaIdle};
const Family kGemma2 = {.model_type = "gemma2",
                        .architecture = "Gemma2ForCausalLM",
                        .layer = {.norm_place = NormPlace::both,
                                  .attention = {.qkv_bias = false},
                                  .feed_forward = kGeglu},
                        .windows = Windows::any,
                        .states_attention_bias = true,
                        .states_score_factor = true,
                        .zero_centered_norms = true,
                        .scales_embedding = true,
                        .read = read_gemma2,
                        .has_shape = has_gemma2_shape,
                        .write = write_gemma2,
                        .weights = kGemma2Weights,
                        .idle = kGemma2Idle};
const Family kGemma3 = {.model_type = "gemma3_text",
                        .architecture = "Gemma3ForCausalLM",
                        .layer = {.norm_place = NormPlace::both,
                                  .attention = {.qk_norm = QkNorm::head, .qkv_bias = false},
                                  .feed_forward = kGeglu},
                        .windows = Windows::any,
                        .states_attention_bias = true,
                        .states_score_factor = true,
                        .zero_centered_norms = true,
                        .scales_embedding = true,
                        .read = read_gemma3,
                        .has_shape = has_gemma3_shape,
                        .write = write_gemma3,
                        .weights = kGemma2Weights,
                        .idle = kGemma3Idle};

}  // namespace fp8lab
