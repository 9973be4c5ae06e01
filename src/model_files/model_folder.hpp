// A model's folder opened to be examined: what is wrong with its files is a finding, no error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/io/tensors/safetensors.hpp"
#include "src/model/dialects/quantization_claim.hpp"
#include "src/model/dialects/stored_weight.hpp"

namespace fp8lab {

enum class Severity : std::uint8_t {
  error,    ///< the model computes something else, or does not load
  warning,  ///< loads, but is probably not what was meant
  note,     ///< a fact that some programs refuse or ignore
};

/// "error", "warning" or "note".
const char* severity_name(Severity severity);

/// One finding about a model's files.
struct ModelFinding {
  Severity severity = Severity::error;
  std::string kind;                 ///< a word for programs, "nan_code"
  std::string tensor;               ///< its name in the files; or a file, or a field of config.json
  std::vector<std::int64_t> block;  ///< indices in the grid of scales; empty: no block
  std::int64_t count = 1;           ///< of blocks or elements concerned; `block` is the first
  std::string text;                 ///< what is wrong and what that does to the model
};

/// Files, configuration and tensors of a model.
struct ModelFolder {
  std::filesystem::path path;
  std::vector<SafetensorsFile> files;
  std::vector<const StoredTensor*> tensors;  ///< each name once, in the order of the files
  std::unordered_map<std::string, const StoredTensor*> by_name;
  std::map<std::string, std::string> metadata;  ///< of all files, the first one counts
  nlohmann::json config;                        ///< config.json; null: none
  QuantizationClaim claim;

  std::vector<StoredWeight> weights;         ///< quantized ones; tiles only where shapes fit
  std::vector<const StoredTensor*> plain;    ///< neither codes nor scales
  std::vector<const StoredTensor*> orphans;  ///< scales of no quantized weight

  const StoredTensor* find(const std::string& name) const;
};

/// Opens the files of a folder or one safetensors file, and groups the tensors. Appends what is
/// wrong with files, index and the JSON to `findings`. Throws Error if there is no model at all.
ModelFolder open_model_folder(const std::filesystem::path& path,
                              std::vector<ModelFinding>& findings);

/// Returns true for a folder or file that open_model_folder reads.
bool is_model_folder(const std::filesystem::path& path);

/// Returns the module of a tensor: its name without the last part.
std::string module_of_tensor(const std::string& name);
/// Returns the last part of a module's name.
std::string leaf_of_module(const std::string& module);

/// Returns true if a part of a module's name between dots satisfies `is_one`.
template <class Predicate>
bool has_part(const std::string& module, const Predicate& is_one) {
  for (std::size_t first = 0; first <= module.size();) {
    const std::size_t end = std::min(module.find('.', first), module.size());
    if (is_one(std::string_view(module).substr(first, end - first))) return true;
    first = end + 1;
  }
  return false;
}

/// Returns a field of config.json; null if it is not there.
const nlohmann::json& config_field(const nlohmann::json& config, const char* key);
/// Returns an integer of config.json, or `otherwise`.
std::int64_t config_number(const nlohmann::json& config, const char* key, std::int64_t otherwise);

/// Elements that are read at a time, few enough for a cache.
inline constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 18;

}  // namespace fp8lab
