// A model family of transformers: what its config.json says, and what its weights are called.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "src/config/config.hpp"
#include "src/config/json_fields.hpp"

namespace fp8lab {

/// Where a file keeps the weights of a module. "{}" stands for the number of a layer; ".weight" and
/// ".bias" follow.
struct WeightName {
  enum class Kind : std::uint8_t {
    other,              ///< a vector, or a table of embeddings
    linear,             ///< (out, in)
    transposed_linear,  ///< (in, out), as Conv1D of transformers has it
  };
  std::string_view module;  ///< ours (src/model/declaration.hpp)
  std::string_view group;   ///< the part of its rows; empty: all
  std::string_view in_files;
  Kind kind = Kind::other;
};

/// A field of config.json without a part in the arithmetic as long as it has this value.
struct IdleField {
  const char* key;
  const char* value;  ///< JSON; "*": any
};

struct Family {
  const char* model_type;
  const char* architecture;
  /// Reads the shape and what else is the family's own. Throws Error naming the field.
  void (*read)(JsonFields& fields, const std::string& origin, ModelConfig& model);
  /// Norm, feed-forward and positions are those of the family: its names fit.
  bool (*has_structure)(const ModelConfig& model);
  /// A config.json of the family can say all of the model.
  bool (*describes)(const ModelConfig& model);
  /// What config.json says of it, apart from what all families have in common.
  nlohmann::ordered_json (*write)(const ModelConfig& model);
  std::span<const WeightName> weights;
  /// Older files lack this at the beginning of names.
  std::string_view optional_prefix;
  /// Beside those of all families (idle_fields); absent fields are idle too.
  std::span<const IdleField> idle;
};

extern const Family kLlama, kQwen2, kQwen3, kGpt2;

/// Idle fields of every family.
std::span<const IdleField> idle_fields();

/// Every family; at most one describes a model.
std::span<const Family* const> families();

/// Throws Error naming `key` where the model is larger than any.
void require_possible_size(const JsonFields& fields, const char* key, const ModelConfig& model);

}  // namespace fp8lab
