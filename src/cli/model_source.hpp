// Models as arguments of commands.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "src/config/config.hpp"
#include "src/data/model_vocabulary.hpp"
#include "src/io/run_log.hpp"
#include "src/model/model_tensors.hpp"
#include "src/train/checkpoint_file.hpp"

namespace fp8lab::cli {

/// The weights of a model, from wherever they lie.
struct ModelSource {
  std::string name;  ///< as given
  std::unique_ptr<ModelTensors> tensors;
  std::optional<ModelConfig> model;  ///< nothing for a safetensors file without a config.json
  std::filesystem::path tokenizer;   ///< the Hugging Face folder behind them; or empty
  OpenCheckpoint checkpoint;         ///< the file that holds them, if a run wrote it
  std::string run_config;            ///< TOML of the run beside that file; or empty
  Identity identity;                 ///< of that run; empty without one
  ModelVocabulary vocabulary = 0;    ///< whose ids the weights know

  /// Throws Error when nothing describes the model.
  const ModelConfig& require_model() const;
  /// Throws Error if the run knows the hash of `part` ("recipe of stage sft") and it is not `hash`:
  /// what the run names has changed since. `instead` says how to name something else.
  void require_unchanged(const std::string& part, const std::string& hash,
                         const std::string& instead) const;
};

/// `path` is a run directory, a checkpoint, a Hugging Face folder, or a safetensors file, beside
/// which a config.json may lie. Throws Error for anything else, and for weights that do not fit the
/// model.
ModelSource open_model(const std::string& path);

}  // namespace fp8lab::cli
