#include "src/config/reading/hugging_face.hpp"

#include <fmt/format.h>

#include <system_error>

#include "emulation/base/input_error.hpp"
#include "src/config/config_names.hpp"
#include "src/config/families/family.hpp"
#include "src/config/reading/json_fields.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hash.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const Family& read_family(JsonFields& fields) {
  const std::string type = fields.text("model_type", "");
  std::string accepted;
  for (const Family* family : families()) {
    accepted += fmt::format("{}{}", accepted.empty() ? "" : ", ", family->model_type);
    if (type != family->model_type) continue;
    fields.require("architectures", json::array({family->architecture}));
    return *family;
  }
  fields.fail("model_type", {.found = fmt::format("'{}'", type.substr(0, 80)),
                             .nearest = did_you_mean(type, accepted),
                             .accepted = accepted});
}

/// Throws Error unless every idle field has the value that makes it idle.
void read_idle(std::span<const IdleField> idle, JsonFields& fields) {
  for (const IdleField& field : idle) {
    if (std::string_view(field.value) == "*") {
      fields.ignore({field.key});
    } else {
      fields.require(field.key, json::parse(field.value));
    }
  }
}

ModelConfig parse(const json& document, const std::string& origin) {
  JsonFields fields(document, origin);
  const Family& family = read_family(fields);
  ModelConfig model = read_model(family, fields, origin);
  model.initializer_range = fields.number("initializer_range", 0.02, 0.0, 10.0);
  read_idle(idle_fields(), fields);
  read_idle(family.idle, fields);
  fields.ignore({kTokenizerField});
  fields.finish();
  return model;
}

/// The factors of a model that are not 1, a missing last norm, and how files hold its weights.
std::string described_factors(const ModelConfig& model) {
  const LayerSpec& layer = model.layers.front();
  const ResidualFactors& residual = layer.residual;
  std::string text = model.has_final_norm ? "" : ", final_norm = false";
  if (layer.attention.softmax_scale > 0.0) {
    text += fmt::format(", softmax_scale = {}", layer.attention.softmax_scale);
  }
  const auto add = [&](const char* key, double factor) {
    if (factor != 1.0) text += fmt::format(", {} = {}", key, factor);
  };
  add("stream_factor", residual.stream);
  add("branch_factor", residual.branch);
  add("embedding_factor", model.embedding_factor);
  if (model.zero_centered_norms) text += ", zero_centered_norms = true";
  if (model.fused_projections) text += ", fused_projections = true";
  const auto add_word = [&](const char* key, ProductFactor factor) {
    if (factor == ProductFactor::one) return;
    text += fmt::format(", {} = {}", key, word_for(kProductFactorNames, factor));
  };
  add_word("linear_alpha", model.linear_alpha);
  add_word("head_alpha", model.head_alpha);
  return text;
}

const Family& family_of(const ModelConfig& model) {
  std::string accepted;
  for (const Family* family : families()) {
    if (describes(*family, model)) return *family;
    accepted += fmt::format("{}{}", accepted.empty() ? "" : "; ", described(*family));
  }
  const LayerSpec& layer = model.layers.front();
  const QkNorm qk_norm = layer.attention.qk_norm;
  throw InputError(
      {.reason = fmt::format(
           "no family of transformers has layers with norm = {}, norm_place = {}, feed_forward = "
           "{}, positions = {}, qkv_bias = {}, o_bias = {}, mlp_bias = {}, qk_norm = {}{} and {} "
           "key-value heads of {} beside {} heads, sliding_window = {}{}",
           word_for(kNormKindNames, layer.norm), word_for(kNormPlaceNames, layer.norm_place),
           word_for(kFeedForwardKindNames, layer.feed_forward.kind),
           word_for(kPositionKindNames, model.positions), layer.attention.qkv_bias,
           layer.attention.o_bias, layer.feed_forward.bias, qk_norm != QkNorm::none,
           qk_norm == QkNorm::none ? "" : fmt::format(" over {}", word_for(kQkNormNames, qk_norm)),
           model.num_key_value_heads, model.head_dim, model.num_attention_heads,
           layer.attention.window, described_factors(model)),
       .accepted = accepted});
}

}  // namespace

std::string folder_tokenizer(const std::filesystem::path& folder) {
  std::string stated;
  if (is_hugging_face_folder(folder)) {
    const std::filesystem::path file = folder / "config.json";
    const json value = read_json_object(file).value(kTokenizerField, json(""));
    if (!value.is_string()) {
      throw InputError(
          {.where = file.string(), .reason = fmt::format("{} is no string", kTokenizerField)});
    }
    stated = value.get<std::string>();
  }
  const std::filesystem::path tokenizer = folder / "tokenizer.json";
  if (!is_file(tokenizer)) return stated;
  std::string own = hex16(xxh3(read_file(tokenizer)));
  if (!stated.empty() && stated != own) {
    throw InputError(
        {.where = tokenizer.string(),
         .reason = fmt::format("is the tokenizer {}, but config.json beside it has {} = {}", own,
                               kTokenizerField, stated),
         .accepted = "one of the two"});
  }
  return own;
}

bool is_hugging_face_folder(const std::filesystem::path& path) {
  return is_file(path / "config.json");
}

ModelConfig read_hugging_face_config(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "config.json";
  return parse(read_json_object(file), file.string());
}

ModelConfig parse_hugging_face_config(const std::string& text, const std::string& origin) {
  return parse(parse_json(text, origin), origin);
}

ordered_json hugging_face_config(const ModelConfig& model, const std::string& dtype) {
  const Family& family = family_of(model);
  ordered_json config;
  config["architectures"] = ordered_json::array({family.architecture});
  config["model_type"] = family.model_type;
  config["vocab_size"] = model.vocab_size;
  config.update(family.write(model));
  config["initializer_range"] = model.initializer_range;
  config["tie_word_embeddings"] = model.tie_word_embeddings;
  config["torch_dtype"] = dtype;
  config["use_cache"] = true;
  return config;
}

}  // namespace fp8lab
