// Checks of a run before it starts: whether it can be trained, and its identity.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/checkpoint/identity.hpp"
#include "src/train/run_directory.hpp"

namespace fp8lab {

/// Recipes, data and questions of a stage.
struct OpenedStage {
  std::vector<Recipe> recipes;  ///< as recipes_of
  DataSources train;
  std::optional<DataSources> eval;
  EvaluationInputs inputs;
};

/// Returns how to open the data of a stage, with the columns of its objective; `where` names the
/// stage in messages.
using OpenData =
    std::function<DataSources(const DataConfig& data, const ModelVocabulary& model,
                              const std::string& where, std::span<const ColumnSpec> columns)>;

/// Opens everything that a run or its plan reads before the first step, except weights. `model`:
/// vocabulary of the initial weights. Throws Error if a stage's recipe does not fit the model or
/// the backend (not checked if `backend` is null), if data are missing, of another vocabulary or
/// without targets, and if they cannot be evaluated as [stages.eval] requires.
std::vector<OpenedStage> open_stages(const RunConfig& config, const Backend* backend,
                                     const ModelVocabulary& model, const OpenData& open);

/// Returns remarks for the user, each once: data of uncertain vocabulary (vocabulary_notes),
/// held-out documents that the same stage trains on or reads more than once (repetition_note), a
/// final learning rate that is never reached, and recipes of [stages.fallback] and
/// [[stages.recipe_at]] that change nothing or are never reached.
std::vector<std::string> run_notes(const RunConfig& config, const std::vector<OpenedStage>& stages,
                                   const ModelVocabulary& model);

/// Returns the parts of the identity that the stages determine (make_identity).
std::vector<StageContents> contents_of(const std::vector<OpenedStage>& stages);

/// Opens the initial weights in `start`, which may differ from config.init_from; nothing for random
/// weights. Throws Error for [growth] without initial weights, a missing file, and weights that do
/// not fit the model.
std::optional<InitialState> open_start(const RunConfig& config, const std::filesystem::path& start);

/// Checks runs one at a time, and keeps the files that they share open.
class RunCheck {
 public:
  using MakeBackend = std::function<std::unique_ptr<Backend>(const std::string& name)>;
  explicit RunCheck(MakeBackend make_backend) : make_backend_(std::move(make_backend)) {}

  /// Throws Error for everything that training would refuse before its first step: a missing
  /// backend, everything that open_start and open_stages refuse, and weights that are not finite.
  /// `start_is_to_come`: the run starts from another run that is not complete yet.
  void check(const RunConfig& config, bool start_is_to_come = false);

  /// Also throws Error if the run cannot begin in `directory`, or with `resume` cannot resume
  /// there.
  void check(const RunConfig& config, const RunDirectory& directory, bool resume);

  /// Returns the run_notes of all checked runs, each once.
  const std::vector<std::string>& notes() const { return notes_; }

  /// Returns the identity of the run (identity.hpp). Contains the initial weights if
  /// config.init_from names some; random weights are determined by the configuration.
  Identity identity(const RunConfig& config);

  /// Returns the parts of the identity that config.init_from determines: the hash of the weights
  /// first.
  const Identity& initial_state(const RunConfig& config);

  /// Destroys the backends and frees their device memory; later checks make new ones.
  void release_backends() { backends_.clear(); }

 private:
  Backend& backend(const std::string& name);
  const DataSources& sources(const DataConfig& config, const ModelVocabulary& model,
                             const std::string& where, std::span<const ColumnSpec> columns);
  OpenData opener();

  struct Opened {
    DataConfig config;
    ModelVocabulary model;
    std::vector<std::string> columns;  ///< names of the objective's columns
    std::unique_ptr<DataSources> sources;
  };
  MakeBackend make_backend_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
  std::vector<Opened> opened_;
  std::map<std::string, Identity> initial_states_;  ///< initial states, by backend, file and model
  std::vector<std::string> notes_;
  std::set<std::string> sound_starts_;  ///< starts with finite weights, by file and model
};

}  // namespace fp8lab
