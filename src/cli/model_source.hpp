// Models as arguments of commands.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "src/config/config.hpp"
#include "src/model/model_tensors.hpp"

namespace fp8lab::cli {

/// The weights of a model, from wherever they lie.
struct ModelSource {
  std::string name;  ///< as given
  std::unique_ptr<ModelTensors> tensors;
  std::optional<ModelConfig> model;  ///< nothing for a safetensors file without a config.json
  std::filesystem::path tokenizer;   ///< the Hugging Face folder behind them; or empty
  std::filesystem::path checkpoint;  ///< the file that holds them, if a run wrote it
  std::string run_config;            ///< TOML of the run beside that file; or empty

  /// Throws Error when nothing describes the model.
  const ModelConfig& require_model() const;
};

/// `path` is a run directory, a checkpoint, a Hugging Face folder, or a safetensors file, beside
/// which a config.json may lie. Throws Error for anything else, and for weights that do not fit the
/// model.
ModelSource open_model(const std::string& path);

}  // namespace fp8lab::cli
