// Reads and writes config.json of Hugging Face models, by the tables of src/config/families.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/config/config.hpp"

namespace fp8lab {

/// Returns true for a folder with a config.json.
bool is_hugging_face_folder(const std::filesystem::path& path);

/// The key of config.json that names the tokenizer of folders without a tokenizer.json;
/// read by folder_tokenizer.
inline constexpr char kTokenizerField[] = "fp8lab_tokenizer";

/// Identifies the tokenizer of the weights in `folder`: "bytes", or the XXH3-64 of tokenizer.json
/// as 16 digits. A folder without a tokenizer.json may state it in config.json (kTokenizerField);
/// empty if it states neither. Throws Error if the two differ.
std::string folder_tokenizer(const std::filesystem::path& folder);

/// Returns the model that `folder`/config.json describes. Absent fields have the defaults of
/// transformers. Throws Error that names file and field for other families, for values that change
/// the arithmetic in a way the model does not support (sliding windows, other activations, ...),
/// and for fields that are neither known nor known to be harmless.
ModelConfig read_hugging_face_config(const std::filesystem::path& folder);

/// Like read_hugging_face_config, but parses the text of a config.json; messages
/// name `origin` as the file.
ModelConfig parse_hugging_face_config(const std::string& text, const std::string& origin);

/// Returns a config.json that transformers loads; `dtype` is "bfloat16", "float16" or "float32".
/// Throws Error if no family has this combination of biases and norms.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, const std::string& dtype);

}  // namespace fp8lab
