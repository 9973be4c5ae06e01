#include "src/config/tables/model_table.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/config/config_names.hpp"
#include "src/config/tables/run_tables.hpp"
#include "src/config/tables/size_limits.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

constexpr std::int64_t kMostLayers = 10000;

bool is_yarn(const RopeScaling& scaling) { return scaling.type == RopeType::yarn; }
bool is_llama3(const RopeScaling& scaling) { return scaling.type == RopeType::llama3; }
bool is_by_parts(const RopeScaling& scaling) { return is_yarn(scaling) || is_llama3(scaling); }
bool scales(const RopeScaling& scaling) { return scaling.type != RopeType::unscaled; }

Field<RopeScaling> original_length_field() {
  Field<RopeScaling> field =
      integer("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings, 1,
              kLargeCount, "sequence length of pre-training in tokens");
  field.accepted = "the pre-training length, " + field.accepted;
  return std::move(field).when(is_by_parts, "rope_type = \"yarn\" or \"llama3\"").required();
}

void check_rope_scaling(const TomlReader& reader, const RopeScaling& scaling) {
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    reader.refuse("high_freq_factor", {.found = fmt::to_string(scaling.high_freq_factor),
                                       .accepted = fmt::format("more than low_freq_factor = {}",
                                                               scaling.low_freq_factor)});
  }
  if (scaling.beta_slow >= scaling.beta_fast) {
    reader.refuse("beta_fast",
                  {.found = fmt::to_string(scaling.beta_fast),
                   .accepted = fmt::format("more than beta_slow = {}", scaling.beta_slow)});
  }
}

const Table<RopeScaling>& rope_scaling_table() {
  using S = RopeScaling;
  const std::string yarn = "rope_type = \"yarn\"", llama3 = "rope_type = \"llama3\"";
  static const Table<S> table{
      {
          choice("rope_type", &S::type, kRopeTypeNames, "formula, as transformers names it")
              .required(),
          number("factor", &S::factor, 1.0, 1e12, "factor by which the context length grows")
              .when(scales, "rope_type other than \"default\", which scales nothing")
              .required(),
          original_length_field(),
          number("low_freq_factor", &S::low_freq_factor, 1e-6, 1e12,
                 "pairs with fewer rotations over the pre-training length are scaled fully")
              .when(is_llama3, llama3),
          number("high_freq_factor", &S::high_freq_factor, 1e-6, 1e12,
                 "pairs with more rotations over the pre-training length are not scaled")
              .when(is_llama3, llama3),
          number("beta_fast", &S::beta_fast, 1e-6, 1e12,
                 "pairs with more rotations over the pre-training length are not scaled")
              .when(is_yarn, yarn),
          number("beta_slow", &S::beta_slow, 1e-6, 1e12,
                 "pairs with fewer rotations over the pre-training length are scaled fully")
              .when(is_yarn, yarn),
          boolean("truncate", &S::truncate,
                  "round the ends of the ramp between beta_slow and beta_fast to whole pairs")
              .when(is_yarn, yarn),
          number("attention_factor", &S::attention_factor, 1e-6, 1e12,
                 "factor of cosines and sines; default: 0.1 ln(factor) + 1")
              .when(is_yarn, yarn),
      },
      {},
      check_rope_scaling};
  return table;
}

bool is_rotated(const ModelConfig& model) { return model.positions == PositionKind::rope; }
bool any_layer(const ModelConfig& model, bool (*holds)(const LayerSpec&)) {
  return std::any_of(model.layers.begin(), model.layers.end(), holds);
}
/// Whether the model has a norm of this kind outside attention.
bool has_norm(const ModelConfig& model, NormKind kind) {
  return (model.has_final_norm && model.final_norm == kind) ||
         std::any_of(model.layers.begin(), model.layers.end(), [&](const LayerSpec& layer) {
           return layer.norm == kind && layer.norm_place != NormPlace::none;
         });
}
bool has_layer_norm(const ModelConfig& model) { return has_norm(model, NormKind::layernorm); }
bool has_post_norms(const ModelConfig& model) {
  return any_layer(model, [](const LayerSpec& layer) { return is_after(layer.norm_place); });
}
bool normalises_heads(const ModelConfig& model) {
  return any_layer(model,
                   [](const LayerSpec& layer) { return layer.attention.qk_norm != QkNorm::none; });
}
bool has_rms_norm(const ModelConfig& model) {
  return has_norm(model, NormKind::rmsnorm) || any_layer(model, [](const LayerSpec& layer) {
           const QkNorm norm = layer.attention.qk_norm;
           return norm == QkNorm::head || norm == QkNorm::all_heads;
         });
}

/// Returns the window of the layers that have one, which is the same for all of them; 0: none has.
std::int64_t window_of(const ModelConfig& model) {
  std::int64_t window = 0;
  for (const LayerSpec& layer : model.layers) window = std::max(window, layer.attention.window);
  return window;
}
bool has_window(const ModelConfig& model) { return window_of(model) > 0; }

/// Turns a row of LayerSpec into a row that holds for all layers.
Field<ModelConfig> of_all_layers(const Field<LayerSpec>& inner) {
  Field<ModelConfig> field = row(inner.word, &ModelConfig::layers, inner.accepted, inner.help);
  field.names = inner.names;
  field.is_text = inner.is_text;
  field.get = [inner](const ModelConfig& model) { return inner.get(model.layers.front()); };
  field.set = [inner](ModelConfig& model, const FieldValue& value) {
    return std::all_of(model.layers.begin(), model.layers.end(),
                       [&](LayerSpec& layer) { return inner.set(layer, value); });
  };
  field.copy = [inner](ModelConfig& to, const ModelConfig& from) {
    to.edit_layers([&](LayerSpec& layer) { inner.copy(layer, from.layers.front()); });
  };
  return field;
}

Field<ModelConfig> layer_count_field() {
  Field<ModelConfig> field =
      row("num_hidden_layers", &ModelConfig::layers, integers(1, kMostLayers), "layers");
  field.get = [](const ModelConfig& model) { return model.layer_count(); };
  field.set = [](ModelConfig& model, const FieldValue& value) {
    const std::optional<std::int64_t> count = integer_in(value, 1, kMostLayers);
    if (count) model.set_layer_count(*count);
    return count.has_value();
  };
  return field;
}

/// The norm of the layers and the last norm.
Field<ModelConfig> norm_field() {
  Field<ModelConfig> field =
      choice("norm", &ModelConfig::final_norm, kNormKindNames,
             "norm of attention and feed-forward blocks and in front of the output layer");
  field.set = [set = field.set](ModelConfig& model, const FieldValue& value) {
    if (!set(model, value)) return false;
    model.edit_layers([&](LayerSpec& layer) { layer.norm = model.final_norm; });
    return true;
  };
  return field;
}

Field<ModelConfig> feed_forward_field() {
  return of_all_layers(lifted(choice("feed_forward", &FeedForwardSpec::kind, kFeedForwardKindNames,
                                     "activation between the feed-forward layers"),
                              &LayerSpec::feed_forward));
}

Field<ModelConfig> window_field() {
  Field<ModelConfig> field = of_all_layers(lifted(
      integer("sliding_window", &AttentionSpec::window, 0, kLargeCount,
              "keys that a query sees in layers with sliding attention, its own included; 0: none"),
      &LayerSpec::attention));
  field.get = window_of;
  return field;
}

/// Which layers have the window.
Field<ModelConfig> layer_types_field() {
  using S = ModelConfig;
  Field<S> field = row("layer_types", &S::layers,
                       "a list of \"full_attention\" and \"sliding_attention\", one for each of "
                       "num_hidden_layers, sliding in one or more",
                       "which layers have sliding attention; empty: all");
  field.get = [](const S& model) {
    FieldList list;
    const auto is_full = [](const LayerSpec& layer) { return layer.attention.window == 0; };
    if (!has_window(model) || !any_layer(model, is_full)) return list;
    for (const LayerSpec& layer : model.layers) {
      list.emplace_back(std::string(is_full(layer) ? kFullAttention : kSlidingAttention));
    }
    return list;
  };
  field.set = [](S& model, const FieldValue& value) {
    const std::optional<std::vector<std::string>> words = texts_of(value, false);
    if (!words) return false;
    const std::int64_t window = window_of(model);
    if (words->empty()) {
      model.edit_layers([&](LayerSpec& layer) { layer.attention.window = window; });
      return true;
    }
    const bool are_known = std::all_of(words->begin(), words->end(), [&](const std::string& word) {
      return word == kFullAttention || word == kSlidingAttention;
    });
    const bool slides = std::find(words->begin(), words->end(), kSlidingAttention) != words->end();
    if (!are_known || !slides || words->size() != model.layers.size()) return false;
    for (std::size_t i = 0; i < words->size(); ++i) {
      model.layers[i].attention.window = (*words)[i] == kSlidingAttention ? window : 0;
    }
    return true;
  };
  // Without a window all layers are of one type.
  field.copy = [](S&, const S&) {};
  return std::move(field).when(has_window, "sliding_window above 0");
}

Field<ModelConfig> qk_norm_field() {
  using S = AttentionSpec;
  Field<S> field = row("qk_norm", &S::qk_norm, "true or false",
                       "RMSNorm of queries and keys before the rotation (Qwen3, OLMo 2)");
  field.get = [](const S& spec) { return spec.qk_norm != QkNorm::none; };
  field.set = [](S& spec, const FieldValue& value) {
    const bool* const given = std::get_if<bool>(&value);
    if (given != nullptr) spec.qk_norm = *given ? QkNorm::head : QkNorm::none;
    return given != nullptr;
  };
  return of_all_layers(lifted(field, &LayerSpec::attention));
}

/// Follows qk_norm in the table, and leaves queries and keys without norms as they are.
Field<ModelConfig> qk_norm_over_field() {
  using S = AttentionSpec;
  Field<S> field = choice("qk_norm_over", &S::qk_norm, kQkNormNames,
                          "channels of one mean square: those of a head (Qwen3) or of all heads "
                          "(OLMo 2); or tanh(alpha x) of each element (FOG)");
  field.get = [](const S& spec) {
    const bool is_none = spec.qk_norm == QkNorm::none;
    return std::string(word_for(kQkNormNames, is_none ? QkNorm::head : spec.qk_norm));
  };
  field.set = [set = field.set](S& spec, const FieldValue& value) {
    S trial = spec;
    if (!set(trial, value)) return false;
    if (spec.qk_norm != QkNorm::none) spec = trial;
    return true;
  };
  return of_all_layers(lifted(field, &LayerSpec::attention))
      .when(normalises_heads, "qk_norm = true");
}

Field<ModelConfig> bias_field(const char* word, bool AttentionSpec::*member, const char* help) {
  return of_all_layers(lifted(boolean(word, member, help), &LayerSpec::attention));
}

void check_model(const TomlReader& reader, const ModelConfig& model) {
  if (is_rotated(model) && model.head_dim % 2 != 0) {
    reader.fail(
        "head_dim",
        {.found = fmt::to_string(model.head_dim),
         .reason = "is odd; rotary embeddings turn pairs of channels, accepted: an even number"});
  }
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    reader.fail("num_key_value_heads",
                {.found = fmt::to_string(model.num_key_value_heads),
                 .reason = fmt::format("does not divide num_attention_heads = {}",
                                       model.num_attention_heads)});
  }
  constexpr double kLeastScale = 1e-30;  // FP32 rounds much smaller ones to 0, the default
  const double scale = model.layers.front().attention.softmax_scale;
  if (scale > 0.0 && scale < kLeastScale) {
    reader.fail("softmax_scale", {.found = fmt::to_string(scale),
                                  .accepted = fmt::format("0, or a number from {}", kLeastScale)});
  }
  check_model_size(reader, model);
}

Field<ModelConfig> residual_field(const char* word, double ResidualFactors::*member,
                                  const char* help) {
  return of_all_layers(lifted(number(word, member, 0.0, 1e6, help), &LayerSpec::residual));
}

bool has_adapters(const ModelConfig& model) { return model.lora.rank > 0; }

/// The outputs that have an adapter.
Field<ModelConfig> lora_targets_field() {
  using S = LoraSpec;
  Field<S> field = row("lora_targets", &S::targets,
                       "a list of one or more of attention.q, attention.k, attention.v, "
                       "attention.o, mlp.gate, mlp.up, mlp.down",
                       "outputs with an adapter, in every layer that has them");
  field.get = [](const S& lora) {
    FieldList list;
    for (const std::string& name : lora.targets) list.emplace_back(name);
    return list;
  };
  field.set = [](S& lora, const FieldValue& value) {
    const std::optional<std::vector<std::string>> names = texts_of(value, false);
    const std::vector<std::string> known = LoraSpec{}.targets;
    const bool are_known = names && !names->empty() &&
                           std::all_of(names->begin(), names->end(), [&](const std::string& name) {
                             return std::count(known.begin(), known.end(), name) == 1 &&
                                    std::count(names->begin(), names->end(), name) == 1;
                           });
    if (are_known) lora.targets = *names;
    return are_known;
  };
  return lifted(field, &ModelConfig::lora).when(has_adapters, "lora_rank above 0");
}

Fields<ModelConfig> model_fields() {
  using S = ModelConfig;
  return {
      integer("vocab_size", &S::vocab_size, 2, kLargeCount, "tokens"),
      integer("hidden_size", &S::hidden_size, 1, kLargeCount, "channels between layers"),
      integer("intermediate_size", &S::intermediate_size, 1, kLargeCount,
              "channels of the feed-forward layers"),
      layer_count_field(),
      integer("num_attention_heads", &S::num_attention_heads, 1, kLargeCount, "heads of queries"),
      integer("num_key_value_heads", &S::num_key_value_heads, 1, kLargeCount,
              "heads of keys and values; divides num_attention_heads"),
      integer("head_dim", &S::head_dim, 2, 1024, "channels of a head; even for rotary positions")
          .otherwise([](const S& model) { return model.hidden_size / model.num_attention_heads; },
                     "hidden_size / num_attention_heads"),
      integer("max_position_embeddings", &S::max_position_embeddings, 1, kLargeCount,
              "tokens of the longest sequence"),
      norm_field(),
      of_all_layers(choice("norm_place", &LayerSpec::norm_place, kNormPlaceNames,
                           "where blocks have norms: in front (Llama), behind (OLMo 2), both "
                           "(Gemma 2) or none")),
      boolean("final_norm", &S::has_final_norm, "a norm in front of the output layer"),
      boolean("scaled_norm_init", &S::scaled_norm_init,
              "weights of norms behind blocks begin with 1 / sqrt(num_hidden_layers) (FOG)")
          .when(has_post_norms, "norm_place = \"post\" or \"both\""),
      boolean("zero_centered_norms", &S::zero_centered_norms,
              "files hold the weights of RMSNorms less 1 (Gemma); training keeps 1 + w in FP32")
          .when(has_rms_norm, "norm = \"rmsnorm\", or qk_norm"),
      feed_forward_field(),
      choice("positions", &S::positions, kPositionKindNames,
             "rotation of queries and keys, or a learned table added to the embedding"),
      window_field(),
      layer_types_field(),
      number("rope_theta", &S::rope_theta, 1.0, 1e12, "base of the rotary frequencies")
          .when(is_rotated, "positions = \"rope\""),
      number("rms_norm_eps", &S::rms_norm_eps, 0.0, 1.0, "added to the mean square of RMSNorm")
          .when(has_rms_norm, "norm = \"rmsnorm\", or qk_norm"),
      number("layer_norm_eps", &S::layer_norm_eps, 0.0, 1.0, "added to the variance of LayerNorm")
          .when(has_layer_norm, "norm = \"layernorm\""),
      number("initializer_range", &S::initializer_range, 0.0, 10.0,
             "standard deviation of initial weights"),
      boolean("scaled_residual_init", &S::scaled_residual_init,
              "attention.o and mlp.down begin with initializer_range / sqrt(2 num_hidden_layers)"),
      residual_field("stream_factor", &ResidualFactors::stream,
                     "factor of the residual stream where a block adds its output"),
      residual_field("branch_factor", &ResidualFactors::branch,
                     "factor of the output that a block adds"),
      number("embedding_factor", &S::embedding_factor, 1e-6, 1e6,
             "factor of the rows of the token embedding, rounded to the type of activations"),
      choice("linear_alpha", &S::linear_alpha, kProductFactorNames,
             "factor of the three products of the linear layers in layers (munit Scaling)"),
      choice("head_alpha", &S::head_alpha, kProductFactorNames,
             "factor of the three products of the output layer"),
      bias_field("qkv_bias", &AttentionSpec::qkv_bias, "queries, keys and values have a bias"),
      bias_field("o_bias", &AttentionSpec::o_bias, "the output of attention has a bias"),
      of_all_layers(
          lifted(boolean("mlp_bias", &FeedForwardSpec::bias, "the feed-forward layers have a bias"),
                 &LayerSpec::feed_forward)),
      of_all_layers(
          lifted(number("softmax_scale", &AttentionSpec::softmax_scale, 0.0, 1e6,
                        "factor of scores in front of the softmax; 0: 1 / sqrt(head_dim)"),
                 &LayerSpec::attention)),
      qk_norm_field(),
      qk_norm_over_field(),
      of_all_layers(lifted(boolean("qk_norm_frozen", &AttentionSpec::qk_norm_frozen,
                                   "the weights of these norms are not trained (FOG)"),
                           &LayerSpec::attention))
          .when(normalises_heads, "qk_norm = true"),
      boolean("fused_projections", &S::fused_projections,
              "files hold q, k and v as one matrix, and gate and up as one (Phi-3)"),
      boolean("tie_word_embeddings", &S::tie_word_embeddings,
              "the output layer has the weights of the embedding"),
      lifted(integer("lora_rank", &LoraSpec::rank, 0, 65536,
                     "rank of low-rank adapters (LoRA, arXiv:2106.09685), which alone are trained; "
                     "0: none"),
             &S::lora),
      lifted(number("lora_alpha", &LoraSpec::alpha, 0.0, 1e6,
                    "an adapter's output is multiplied by lora_alpha / lora_rank"),
             &S::lora)
          .when(has_adapters, "lora_rank above 0"),
      lora_targets_field(),
  };
}

}  // namespace

const Table<ModelConfig>& model_table() {
  using S = ModelConfig;
  const auto is_scaled = [](const S& model) {
    return is_rotated(model) && scales(model.rope_scaling);
  };
  static const Table<S> table{
      model_fields(),
      {shared(MemberTable("rope_scaling", &S::rope_scaling, rope_scaling_table,
                          "rotary frequencies beyond the length of pre-training")
                  .when(is_scaled))},
      check_model};
  return table;
}

ModelConfig read_model_table(TomlReader& document) {
  ModelConfig model;
  if (std::optional<TomlReader> table = document.table("model")) {
    read_table(*table, model_table(), model);
  }
  return model;
}

std::string model_table_text(const ModelConfig& model) {
  return table_text(model_table(), model, {}, "model", "[model]", true, Keys::complete);
}

ModelConfig parse_model_table(const std::string& text, const std::string& origin) {
  const toml::table root = parse_toml(text, origin);
  TomlReader document(root, "", origin);
  const ModelConfig model = read_model_table(document);
  document.finish();
  return model;
}

}  // namespace fp8lab
