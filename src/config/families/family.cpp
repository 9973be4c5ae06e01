#include "src/config/families/family.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "src/architecture/model_names.hpp"
#include "src/config/tables/size_limits.hpp"

namespace fp8lab {

std::span<const IdleField> idle_fields() {
  static constexpr std::array<IdleField, 69> kAll = {{
      {"is_cross_attention_model", "false"},
      {"add_cross_attention", "false"},
      {"tie_encoder_decoder", "false"},
      {"cross_attention_hidden_size", "null"},
      {"pruned_heads", "{}"},
      {"_name_or_path", "*"},
      {"transformers_version", "*"},
      {"torch_dtype", "*"},
      {"dtype", "*"},
      {"use_cache", "*"},
      {"bos_token_id", "*"},
      {"eos_token_id", "*"},
      {"pad_token_id", "*"},
      {"unk_token_id", "*"},
      {"cls_token_id", "*"},
      {"sep_token_id", "*"},
      {"decoder_start_token_id", "*"},
      {"tokenizer_class", "*"},
      {"task_specific_params", "*"},
      {"_attn_implementation", "*"},
      {"_attn_implementation_autoset", "*"},
      {"attn_implementation", "*"},
      {"output_attentions", "*"},
      {"output_hidden_states", "*"},
      {"return_dict", "*"},
      {"torchscript", "*"},
      {"is_decoder", "*"},
      {"is_encoder_decoder", "*"},
      {"chunk_size_feed_forward", "*"},
      {"problem_type", "*"},
      {"id2label", "*"},
      {"label2id", "*"},
      {"finetuning_task", "*"},
      {"prefix", "*"},
      {"model_max_length", "*"},
      {"unsloth_version", "*"},
      {"unsloth_fixed", "*"},
      {"transformers.js_config", "*"},
      {"num_labels", "*"},
      {"_num_labels", "*"},
      {"gradient_checkpointing", "*"},
      {"tf_legacy_loss", "*"},
      {"use_bfloat16", "*"},
      {"quantization_config", "*"},
      // Generation settings, for which the program has its own options.
      {"do_sample", "*"},
      {"temperature", "*"},
      {"top_k", "*"},
      {"top_p", "*"},
      {"typical_p", "*"},
      {"max_length", "*"},
      {"min_length", "*"},
      {"num_beams", "*"},
      {"num_beam_groups", "*"},
      {"diversity_penalty", "*"},
      {"num_return_sequences", "*"},
      {"repetition_penalty", "*"},
      {"length_penalty", "*"},
      {"no_repeat_ngram_size", "*"},
      {"encoder_no_repeat_ngram_size", "*"},
      {"early_stopping", "*"},
      {"bad_words_ids", "*"},
      {"forced_bos_token_id", "*"},
      {"forced_eos_token_id", "*"},
      {"suppress_tokens", "*"},
      {"begin_suppress_tokens", "*"},
      {"exponential_decay_length_penalty", "*"},
      {"remove_invalid_values", "*"},
      {"return_dict_in_generate", "*"},
      {"output_scores", "*"},
  }};
  return kAll;
}

std::span<const Family* const> families() {
  static constexpr std::array<const Family*, 10> kAll = {
      &kLlama, &kMistral, &kQwen2, &kQwen3, &kOlmo2, &kGemma, &kGemma2, &kGemma3, &kPhi3, &kGpt2};
  return kAll;
}

ModelConfig read_model(const Family& family, JsonFields& fields, const std::string& origin) {
  ModelConfig model;
  model.layers = {family.layer};
  model.final_norm = family.layer.norm;
  model.positions = family.positions;
  if (family.states_attention_bias) {
    AttentionSpec& attention = model.layers.front().attention;
    attention.qkv_bias = attention.o_bias = fields.boolean("attention_bias", false);
  }
  if (family.states_mlp_bias) {
    model.layers.front().feed_forward.bias = fields.boolean("mlp_bias", false);
  }
  family.read(fields, origin, model);
  return model;
}

bool has_names(const Family& family, const ModelConfig& model) {
  const bool names_qk_norms = std::any_of(
      family.weights.begin(), family.weights.end(),
      [](const WeightName& name) { return name.module == "layers.{}.attention.q_norm"; });
  return model.positions == family.positions && model.final_norm == family.layer.norm &&
         model.zero_centered_norms == family.zero_centered_norms &&
         model.fused_projections == family.fused_projections &&
         std::all_of(model.layers.begin(), model.layers.end(), [&](const LayerSpec& layer) {
           return layer.norm == family.layer.norm && layer.norm_place == family.layer.norm_place &&
                  layer.feed_forward.kind == family.layer.feed_forward.kind &&
                  (layer.attention.qk_norm == QkNorm::none ||
                   (names_qk_norms && layer.attention.qk_norm != QkNorm::elements));
         });
}

bool describes(const Family& family, const ModelConfig& model) {
  const ModelConfig plain;
  const double factor =
      family.scales_embedding ? std::sqrt(static_cast<double>(model.hidden_size)) : 1.0;
  if (!model.has_final_norm || model.embedding_factor != factor ||
      model.linear_alpha != plain.linear_alpha || model.head_alpha != plain.head_alpha) {
    return false;
  }
  if (!has_names(family, model) || (family.has_shape != nullptr && !family.has_shape(model))) {
    return false;
  }
  const LayerSpec& first = model.layers.front();
  LayerSpec expected = family.layer;
  if (family.states_attention_bias) {
    expected.attention.qkv_bias = expected.attention.o_bias = first.attention.qkv_bias;
  }
  if (family.states_mlp_bias) expected.feed_forward.bias = first.feed_forward.bias;
  if (family.states_score_factor) {
    expected.attention.softmax_scale = first.attention.softmax_scale;
  }
  std::int64_t window = 0;
  for (const LayerSpec& layer : model.layers) window = std::max(window, layer.attention.window);
  if ((family.windows == Windows::none && window > 0) ||
      (family.windows == Windows::every && window == 0)) {
    return false;
  }
  return std::all_of(model.layers.begin(), model.layers.end(), [&](const LayerSpec& layer) {
    LayerSpec spec = expected;
    spec.attention.window = window;
    spec.attention.qk_norm_frozen = layer.attention.qk_norm_frozen;  // not of the function
    if (family.windows == Windows::any && layer.attention.window == 0) spec.attention.window = 0;
    return layer == spec;
  });
}

std::string described(const Family& family) {
  const LayerSpec& layer = family.layer;
  const bool has_qk_norm = layer.attention.qk_norm != QkNorm::none;
  const std::string biases = family.states_attention_bias
                                 ? "qkv_bias = o_bias"
                                 : fmt::format("qkv_bias = {}, o_bias = {}",
                                               layer.attention.qkv_bias, layer.attention.o_bias);
  const char* const windows[] = {"no window", "a window in every layer", "any windows"};
  return fmt::format(
      "{} (norm = {}, norm_place = {}, feed_forward = {}, positions = {}, {}, {}qk_norm = {}{}, "
      "{}{}{}{})",
      family.model_type, word_for(kNormKindNames, layer.norm),
      word_for(kNormPlaceNames, layer.norm_place),
      word_for(kFeedForwardKindNames, layer.feed_forward.kind),
      word_for(kPositionKindNames, family.positions), biases,
      family.states_mlp_bias ? "" : fmt::format("mlp_bias = {}, ", layer.feed_forward.bias),
      has_qk_norm,
      has_qk_norm ? fmt::format(" over {}", word_for(kQkNormNames, layer.attention.qk_norm)) : "",
      windows[static_cast<int>(family.windows)],
      family.zero_centered_norms ? ", zero_centered_norms = true" : "",
      family.fused_projections ? ", fused_projections = true" : "",
      family.scales_embedding ? ", embedding_factor = sqrt(hidden_size)" : "");
}

void require_possible_size(const JsonFields& fields, const char* key, const ModelConfig& model) {
  const double size = parameter_count(model);
  if (size <= kMostParameters) return;
  fields.fail(key, {.reason = fmt::format("and the other sizes make {:.3g} parameters", size),
                    .accepted = fmt::format("at most {:.3g}", kMostParameters)});
}

}  // namespace fp8lab
