// Models as arguments of commands.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/options/options.hpp"
#include "src/config/config.hpp"
#include "src/data/model_vocabulary.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/model/weights/model_tensors.hpp"
#include "src/train/checkpoint/checkpoint_file.hpp"
#include "src/train/run_record.hpp"

namespace fp8lab::cli {

/// The weights of a model and where they come from.
struct ModelSource {
  std::string name;  ///< name as given
  std::unique_ptr<ModelTensors> tensors;
  std::optional<ModelConfig> model;  ///< nothing for a safetensors file without a config.json
  std::filesystem::path tokenizer;   ///< Hugging Face folder of the weights, or empty
  OpenCheckpoint checkpoint;         ///< file of the weights, if a run wrote it
  std::optional<RunMeta> run;  ///< contents of the run file beside the checkpoint, if there is one
  RunPlaces places;            ///< locations of that run's files
  ModelVocabulary vocabulary = 0;  ///< vocabulary of the weights

  /// Returns the model. Throws Error if nothing describes it.
  const ModelConfig& require_model() const;
  /// Throws Error if the run recorded another hash than `hash` for `part` ("recipe of stage sft"):
  /// the file it names has changed. `instead` states how to name another one.
  void require_unchanged(const std::string& part, const std::string& hash,
                         const std::string& instead) const;
};

/// Adds --look-in.
void add_look_in(Options& options);
/// Returns the folders of --look-in. Throws Error for anything that is not a folder.
std::vector<std::filesystem::path> folders_to_look_in(const Values& values,
                                                      const std::string& command);

/// Returns the folder of `path` if that is a run.h5, which stands for its run; else `path`.
std::string folder_of_run_file(const std::string& path);

/// Opens `given`: a run directory, a checkpoint, a Hugging Face folder, the name of a model in
/// the Hub's cache, the run.h5 of a run, or a safetensors file, optionally with a config.json
/// beside it. Files of a run are also searched for in `look_in`. Throws Error for anything else,
/// and for weights that do not fit the model.
ModelSource open_model(const std::string& given, const std::vector<std::filesystem::path>& look_in);

}  // namespace fp8lab::cli
