// Models as arguments of commands.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/options.hpp"
#include "src/config/config.hpp"
#include "src/data/model_vocabulary.hpp"
#include "src/io/run_log.hpp"
#include "src/model/model_tensors.hpp"
#include "src/train/checkpoint_file.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab::cli {

/// The weights of a model, from wherever they lie.
struct ModelSource {
  std::string name;  ///< as given
  std::unique_ptr<ModelTensors> tensors;
  std::optional<ModelConfig> model;  ///< nothing for a safetensors file without a config.json
  std::filesystem::path tokenizer;   ///< the Hugging Face folder behind them; or empty
  OpenCheckpoint checkpoint;         ///< the file that holds them, if a run wrote it
  std::optional<RunMeta> run;        ///< what the run file beside that says, if there is one
  RunPlaces places;                  ///< where files of that run are
  ModelVocabulary vocabulary = 0;    ///< whose ids the weights know

  /// Throws Error when nothing describes the model.
  const ModelConfig& require_model() const;
  /// Throws Error if the run knows the hash of `part` ("recipe of stage sft") and it is not `hash`:
  /// what the run names has changed since. `instead` says how to name something else.
  void require_unchanged(const std::string& part, const std::string& hash,
                         const std::string& instead) const;
};

/// Adds --look-in.
void add_look_in(Options& options);
/// Its folders. Throws Error for what is none.
std::vector<std::filesystem::path> folders_to_look_in(const Values& values,
                                                      const std::string& command);

/// `given` is a run directory, a checkpoint, a Hugging Face folder, the name of a model in the
/// Hub's cache, or a safetensors file, beside which a config.json may lie; files of a run are also
/// looked for in `look_in`. Throws Error for anything else, and for weights that do not fit the
/// model.
ModelSource open_model(const std::string& given, const std::vector<std::filesystem::path>& look_in);

}  // namespace fp8lab::cli
