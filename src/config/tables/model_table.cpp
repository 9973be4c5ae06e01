#include "src/config/tables/model_table.hpp"

#include <algorithm>

#include "src/config/config_names.hpp"
#include "src/config/tables/run_tables.hpp"
#include "src/config/tables/size_limits.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

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
    reader.refuse("high_freq_factor", fmt::format("{}", scaling.high_freq_factor),
                  fmt::format("more than low_freq_factor = {}", scaling.low_freq_factor));
  }
  if (scaling.beta_slow >= scaling.beta_fast) {
    reader.refuse("beta_fast", fmt::format("{}", scaling.beta_fast),
                  fmt::format("more than beta_slow = {}", scaling.beta_slow));
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
bool has_layer_norm(const ModelConfig& model) { return model.norm == NormKind::layernorm; }
bool has_rms_norm(const ModelConfig& model) { return !has_layer_norm(model) || model.qk_norm; }

bool has_window(const ModelConfig& model) { return model.sliding_window > 0; }

Field<ModelConfig> layer_types_field() {
  using S = ModelConfig;
  Field<S> field = row("layer_types", &S::layer_types,
                       "a list of \"full_attention\" and \"sliding_attention\", one for each layer",
                       "which layers have sliding attention; empty: all");
  field.get = [](const S& model) {
    FieldList list;
    for (const LayerType type : model.layer_types) {
      list.emplace_back(std::string(word_for(kLayerTypeNames, type)));
    }
    return list;
  };
  field.set = [](S& model, const FieldValue& value) {
    const std::optional<std::vector<std::string>> words = texts_of(value, false);
    if (!words) return false;
    std::vector<LayerType> types;
    for (const std::string& word : *words) {
      const std::optional<LayerType> type = value_for(kLayerTypeNames, word);
      if (!type) return false;
      types.push_back(*type);
    }
    model.layer_types = std::move(types);
    return true;
  };
  return std::move(field).when(has_window, "sliding_window above 0");
}

void check_layer_types(const TomlReader& reader, const ModelConfig& model) {
  const std::vector<LayerType>& types = model.layer_types;
  if (types.empty()) return;
  if (static_cast<std::int64_t>(types.size()) != model.num_hidden_layers) {
    reader.fail("layer_types", fmt::format("{} names for num_hidden_layers = {}; accepted: one "
                                           "for each layer",
                                           types.size(), model.num_hidden_layers));
  }
  if (std::find(types.begin(), types.end(), LayerType::sliding_attention) == types.end()) {
    reader.fail("layer_types", fmt::format("leaves sliding_window = {} without a layer; accepted: "
                                           "\"sliding_attention\" for one or more",
                                           model.sliding_window));
  }
}

void check_model(const TomlReader& reader, const ModelConfig& model) {
  check_layer_types(reader, model);
  if (is_rotated(model) && model.head_dim % 2 != 0) {
    reader.fail("head_dim", fmt::format("{} is odd; rotary embeddings turn pairs of channels, "
                                        "accepted: an even number",
                                        model.head_dim));
  }
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    reader.fail("num_key_value_heads",
                fmt::format("{} does not divide num_attention_heads = {}",
                            model.num_key_value_heads, model.num_attention_heads));
  }
  check_model_size(reader, model);
}

Fields<ModelConfig> model_fields() {
  using S = ModelConfig;
  return {
      integer("vocab_size", &S::vocab_size, 2, kLargeCount, "tokens"),
      integer("hidden_size", &S::hidden_size, 1, kLargeCount, "channels between layers"),
      integer("intermediate_size", &S::intermediate_size, 1, kLargeCount,
              "channels of the feed-forward layers"),
      integer("num_hidden_layers", &S::num_hidden_layers, 1, 10000, "layers"),
      integer("num_attention_heads", &S::num_attention_heads, 1, kLargeCount, "heads of queries"),
      integer("num_key_value_heads", &S::num_key_value_heads, 1, kLargeCount,
              "heads of keys and values; divides num_attention_heads"),
      integer("head_dim", &S::head_dim, 2, 1024, "channels of a head; even for rotary positions")
          .otherwise([](const S& model) { return model.hidden_size / model.num_attention_heads; },
                     "hidden_size / num_attention_heads"),
      integer("max_position_embeddings", &S::max_position_embeddings, 1, kLargeCount,
              "tokens of the longest sequence"),
      choice("norm", &S::norm, kNormKindNames,
             "norm in front of attention, feed-forward and output layers"),
      choice("feed_forward", &S::feed_forward, kFeedForwardKindNames,
             "activation between the feed-forward layers"),
      choice("positions", &S::positions, kPositionKindNames,
             "rotation of queries and keys, or a learned table added to the embedding"),
      integer("sliding_window", &S::sliding_window, 0, kLargeCount,
              "keys that a query sees in layers with sliding attention, its own included; 0: none"),
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
      boolean("qkv_bias", &S::qkv_bias, "queries, keys and values have a bias"),
      boolean("o_bias", &S::o_bias, "the output of attention has a bias"),
      boolean("mlp_bias", &S::mlp_bias, "the feed-forward layers have a bias"),
      boolean("qk_norm", &S::qk_norm, "RMSNorm over each head of queries and keys (Qwen3)"),
      boolean("tie_word_embeddings", &S::tie_word_embeddings,
              "the output layer has the weights of the embedding"),
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
