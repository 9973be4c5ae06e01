// The config.json of published models: each is read as the shape and the number of parameters that
// its publisher states, or refused by the field that says what the model lacks here.
#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "emulation/base/error.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/json_document.hpp"

using namespace fp8lab;
using nlohmann::json;

namespace {

json published_models() {
  return parse_json(read_file(FP8LAB_PUBLISHED_MODELS), FP8LAB_PUBLISHED_MODELS);
}

/// The sum over the tensors that such a file holds, from its own fields.
std::int64_t stated_parameters(const json& config) {
  const auto field = [&](const char* key) { return config.at(key).get<std::int64_t>(); };
  const std::string family = config.at("model_type").get<std::string>();
  if (family == "gpt2") {
    const std::int64_t c = field("n_embd");
    const std::int64_t layer = 4 * c * c + 8 * c * c + (3 + 1 + 4 + 1) * c + 4 * c;
    return (field("vocab_size") + field("n_positions")) * c + field("n_layer") * layer + 2 * c;
  }
  const std::int64_t c = field("hidden_size"), heads = field("num_attention_heads");
  const std::int64_t groups = config.value("num_key_value_heads", heads);
  const std::int64_t d = config.value("head_dim", c / heads);
  std::int64_t layer = 2 * c * heads * d + 2 * c * groups * d + 3 * c * field("intermediate_size");
  layer += 2 * c;
  if (family == "qwen2") layer += (heads + 2 * groups) * d;
  if (family == "qwen3") layer += 2 * d;
  const bool is_gemma = family.starts_with("gemma");
  const std::int64_t tables = config.value("tie_word_embeddings", is_gemma) ? 1 : 2;
  return tables * field("vocab_size") * c + field("num_hidden_layers") * layer + c;
}

}  // namespace

TEST_CASE("published models have the shape and the size that their publishers state") {
  std::map<std::string, int> families;
  for (const json& entry : published_models()) {
    if (!entry.contains("parameters")) continue;
    const json& config = entry["config"];
    INFO(entry["name"]);
    ModelConfig model;
    REQUIRE_NOTHROW(model = parse_hugging_face_config(config.dump(), "c"));
    const json& shape = entry["shape"];
    CHECK(model.layer_count() == shape["layers"]);
    CHECK(model.num_attention_heads == shape["heads"]);
    CHECK(model.num_key_value_heads == shape["key_value_heads"]);
    CHECK(model.head_dim == shape["head_dim"]);
    if (shape.contains("rope_theta")) CHECK(model.rope_theta == shape["rope_theta"]);
    CHECK(model.layers.front().attention.window == shape.value("window", 0));
    CHECK(model.vocab_size == config["vocab_size"]);
    CHECK(declaration_of(model).weights() == entry["parameters"]);
    CHECK(stated_parameters(config) == entry["parameters"]);
    // Written and read again it is the same model.
    CHECK(parse_hugging_face_config(hugging_face_config(model, "bfloat16").dump(), "c") == model);
    ++families[config["model_type"].get<std::string>()];
  }
  CHECK(families["llama"] >= 15);
  CHECK(families["qwen2"] >= 6);
  CHECK(families["qwen3"] >= 4);
  CHECK(families["gpt2"] >= 5);
  CHECK(families["mistral"] >= 2);
  CHECK(families["gemma"] >= 2);
  CHECK(families["phi3"] >= 2);
}

TEST_CASE("published models of other families and features are refused by the field that matters") {
  int refused = 0;
  for (const json& entry : published_models()) {
    if (!entry.contains("refused")) continue;
    INFO(entry["name"]);
    const std::string field = "'" + entry["refused"].get<std::string>() + "'";
    CHECK_THROWS_WITH(parse_hugging_face_config(entry["config"].dump(), "c"),
                      Catch::Contains(field));
    ++refused;
  }
  CHECK(refused >= 4);
}

TEST_CASE("a feature that changes the arithmetic is refused in any published file") {
  struct Feature {
    const char* family;
    const char* field;
    json value;
  };
  const Feature features[] = {
      {"llama", "rope_interleaved", true},
      {"llama", "hidden_act", "gelu"},
      {"llama", "sliding_window", 4096},
      {"llama", "partial_rotary_factor", 0.5},
      {"llama", "num_local_experts", 8},
      {"llama", "attention_dropout", 0.1},
      {"llama", "auto_map", json{{"AutoModel", "m.M"}}},
      {"mistral", "hidden_act", "gelu"},
      {"mistral", "layer_types", json(std::vector<std::string>(32, "chunked_attention"))},
      {"mistral", "use_sliding_window", false},
      {"qwen2", "hidden_act", "gelu_new"},
      {"qwen2", "use_mrope", true},
      {"qwen2", "rope_scaling", json{{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}},
      {"qwen2", "rope_scaling", json{{"rope_type", "default"}, {"factor", 8.0}}},
      {"qwen2", "num_experts", 60},
      {"qwen2", "layer_types", json{"full_attention", "sliding_attention"}},
      {"qwen2", "layer_types", json{"full_attention"}},
      {"qwen3", "layer_types", json{{"every", "full_attention"}}},
      {"qwen3", "hidden_act", "relu"},
      {"qwen3", "moe_intermediate_size", 768},
      {"gemma", "hidden_act", "silu"},
      {"gemma", "hidden_activation", "gelu"},
      {"gemma", "use_bidirectional_attention", true},
      {"gemma", "sliding_window", 4096},
      {"gemma", "query_pre_attn_scalar", 224},
      {"gemma", "final_logit_softcapping", 30.0},
      {"phi3", "partial_rotary_factor", 0.75},
      {"phi3", "rope_scaling", json{{"type", "su"}, {"short_factor", {1.0}}}},
      {"phi3", "rope_scaling", json{{"type", "linear"}, {"factor", 2.0}}},
      {"phi3", "rope_scaling", json{{"type", "yarn"}, {"factor", 2.0}}},
      {"phi3", "resid_pdrop", 0.1},
      {"phi3", "attention_bias", true},
      {"phi3", "auto_map", json{{"AutoModelForCausalLM", "modeling.Other"}}},
      {"phi3", "hidden_act", "gelu"},
      {"gpt2", "activation_function", "relu"},
      {"gpt2", "scale_attn_weights", false},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true},
      {"gpt2", "add_cross_attention", true},
      {"gpt2", "pruned_heads", json{{"0", {1}}}},
  };
  for (const json& entry : published_models()) {
    if (!entry.contains("parameters")) continue;
    for (const Feature& feature : features) {
      json config = entry["config"];
      if (config["model_type"] != feature.family) continue;
      config[feature.field] = feature.value;
      INFO(entry["name"] << " with " << feature.field);
      CHECK_THROWS_WITH(parse_hugging_face_config(config.dump(), "c"),
                        Catch::Contains(feature.field) || Catch::Contains("rope_type"));
    }
  }
}

TEST_CASE("what tools leave in files of any family changes nothing") {
  const json leftovers = {
      {"_num_labels", 2},
      {"bad_words_ids", nullptr},
      {"cross_attention_hidden_size", nullptr},
      {"diversity_penalty", 0.0},
      {"encoder_no_repeat_ngram_size", 0},
      {"exponential_decay_length_penalty", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"num_beam_groups", 1},
      {"output_scores", false},
      {"remove_invalid_values", false},
      {"return_dict_in_generate", false},
      {"suppress_tokens", nullptr},
      {"begin_suppress_tokens", nullptr},
      {"tf_legacy_loss", false},
      {"typical_p", 1.0},
      {"use_bfloat16", false},
      {"gradient_checkpointing", false},
  };
  for (const json& entry : published_models()) {
    if (!entry.contains("parameters")) continue;
    INFO(entry["name"]);
    json config = entry["config"];
    const ModelConfig plain = parse_hugging_face_config(config.dump(), "c");
    config.update(leftovers);
    CHECK(parse_hugging_face_config(config.dump(), "c") == plain);
    config["cross_attention_hidden_size"] = 64;
    CHECK_THROWS_WITH(parse_hugging_face_config(config.dump(), "c"),
                      Catch::Contains("cross_attention_hidden_size"));
  }
}
