// A model family of transformers: the contents of its config.json and the names of its weights.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "src/config/config.hpp"
#include "src/config/reading/json_fields.hpp"

namespace fp8lab {

/// Name of a module's weights in a file. "{}" stands for the layer's number; ".weight"
/// and ".bias" are appended.
struct WeightName {
  enum class Kind : std::uint8_t {
    other,              ///< a vector or an embedding table
    linear,             ///< (out, in)
    transposed_linear,  ///< (in, out), as in Conv1D of transformers
  };
  std::string_view module;  ///< module name of this program (src/architecture/declaration.hpp)
  std::string_view group;   ///< group of rows within the module; empty: all rows
  std::string_view in_files;
  Kind kind = Kind::other;
};

/// A field of config.json that does not affect the arithmetic as long as it has this value.
struct IdleField {
  const char* key;
  const char* value;  ///< JSON; "*": any value
};

/// Which layers of a family have sliding windows.
enum class Windows : std::uint8_t { none, every, any };

struct Family {
  const char* model_type;
  const char* architecture;
  /// Every layer, except for its window and for the biases that are fields of config.json.
  LayerSpec layer;
  PositionKind positions = PositionKind::rope;
  Windows windows = Windows::none;
  bool states_attention_bias = false;  ///< attention_bias: qkv_bias and o_bias, which are equal
  bool states_mlp_bias = false;        ///< mlp_bias
  bool states_score_factor = false;    ///< query_pre_attn_scalar: AttentionSpec::softmax_scale
  bool zero_centered_norms = false;    ///< as ModelConfig::zero_centered_norms
  bool fused_projections = false;      ///< as ModelConfig::fused_projections
  bool scales_embedding = false;       ///< embedding_factor is sqrt(hidden_size), else 1
  /// Reads the shape and all fields specific to the family. Throws Error that names the field.
  void (*read)(JsonFields& fields, const std::string& origin, ModelConfig& model);
  /// Returns true if config.json can state the model's sizes; null: it states all of them.
  bool (*has_shape)(const ModelConfig& model) = nullptr;
  /// Returns the fields of config.json for the model, except those that all families share.
  nlohmann::ordered_json (*write)(const ModelConfig& model);
  std::span<const WeightName> weights;
  /// Prefix of weight names that older files leave out.
  std::string_view optional_prefix = "";
  /// Idle fields of the family, in addition to idle_fields(); absent fields are idle too.
  std::span<const IdleField> idle;
};

extern const Family kLlama, kMistral, kQwen2, kQwen3, kOlmo2, kGemma, kGemma2, kGemma3, kPhi3,
    kGpt2;

/// Reads the model of a config.json of the family.
ModelConfig read_model(const Family& family, JsonFields& fields, const std::string& origin);

/// Returns true if the family has names for all weights of the model.
bool has_names(const Family& family, const ModelConfig& model);

/// Returns true if a config.json of the family can describe the whole model.
bool describes(const Family& family, const ModelConfig& model);

/// Returns "qwen2 (norm = rmsnorm, ...)": the models that the family describes.
std::string described(const Family& family);

/// Returns the idle fields common to all families.
std::span<const IdleField> idle_fields();

/// Returns all families; at most one describes a given model.
std::span<const Family* const> families();

/// Throws Error naming `key` if the model exceeds the size limits.
void require_possible_size(const JsonFields& fields, const char* key, const ModelConfig& model);

}  // namespace fp8lab
