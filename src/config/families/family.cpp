#include "src/config/families/family.hpp"

#include <fmt/format.h>

#include <array>

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
  static constexpr std::array<const Family*, 5> kAll = {&kLlama, &kMistral, &kQwen2, &kQwen3,
                                                        &kGpt2};
  return kAll;
}

void require_possible_size(const JsonFields& fields, const char* key, const ModelConfig& model) {
  const double size = approximate_parameters(model);
  if (size <= kMostParameters) return;
  fields.fail(key, fmt::format("and the other sizes make {:.3g} parameters; accepted: at most "
                               "{:.3g}",
                               size, kMostParameters));
}

}  // namespace fp8lab
