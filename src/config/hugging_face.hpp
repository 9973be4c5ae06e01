// The config.json of Hugging Face models: Llama 2 and 3, Qwen2 and 2.5, Qwen3, GPT-2.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "src/config/config.hpp"

namespace fp8lab {

/// True for a folder with a config.json.
bool is_hugging_face_folder(const std::filesystem::path& path);

/// A key of config.json for folders without a tokenizer.json, read by folder_tokenizer.
inline constexpr char kTokenizerField[] = "fp8lab_tokenizer";

/// "bytes", or the XXH3-64 of tokenizer.json as 16 digits: which tokenizer the weights in `folder`
/// are of. A folder without a tokenizer.json may say it in config.json (kTokenizerField);
/// empty: neither does. Throws Error when the two differ.
std::string folder_tokenizer(const std::filesystem::path& folder);

/// The model that `folder`/config.json describes. Absent fields mean what transformers takes for
/// them. Throws Error naming file and field for other families, for values that change the
/// arithmetic and that the model lacks (sliding windows, other activations, ...), and for fields
/// that are neither known nor known to be harmless.
ModelConfig read_hugging_face_config(const std::filesystem::path& folder);

/// The same from the text of a config.json; `origin` stands for it in messages.
ModelConfig parse_hugging_face_config(const std::string& text, const std::string& origin);

/// A config.json that transformers loads; `dtype` is "bfloat16", "float16" or
/// "float32". Throws Error when no family has the combination of biases and norms.
nlohmann::ordered_json hugging_face_config(const ModelConfig& model, const std::string& dtype);

}  // namespace fp8lab
