// What a run would be, known before it is started: whether it can be trained, and its identity.
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

/// What a stage is trained with and on.
struct OpenedStage {
  std::vector<Recipe> recipes;  ///< as recipes_of
  DataSources train;
  std::optional<DataSources> eval;
  EvaluationInputs inputs;
};

/// How the data of a stage are opened, with columns of its objective; `where` names it.
using OpenData =
    std::function<DataSources(const DataConfig& data, const ModelVocabulary& model,
                              const std::string& where, std::span<const ColumnSpec> columns)>;

/// Everything of a run but its weights, opened: what training and a plan of it read before the
/// first step. `model`: whose ids the initial weights know. Throws Error when a stage's recipe does
/// not fit the model or the backend, which nobody looks at without one, when data are missing, of
/// another vocabulary or without targets, and when they cannot be evaluated as [stages.eval] asks.
std::vector<OpenedStage> open_stages(const RunConfig& config, const Backend* backend,
                                     const ModelVocabulary& model, const OpenData& open);

/// What a user should know about them, each once: data whose vocabulary is not known for sure
/// (vocabulary_notes), held-out documents that are trained on in the same stage or read more than
/// once (repetition_note), a final learning rate that is never reached, and recipes of
/// [stages.fallback] and [[stages.recipe_at]] that change nothing or are never reached.
std::vector<std::string> run_notes(const RunConfig& config, const std::vector<OpenedStage>& stages,
                                   const ModelVocabulary& model);

/// What they add to the identity of the run (make_identity).
std::vector<StageContents> contents_of(const std::vector<OpenedStage>& stages);

/// The initial weights in `start`, another file than config.init_from names or that one; nothing
/// for random ones. Throws Error for [growth] without any, for a file that is missing, and for
/// weights that do not fit the model.
std::optional<InitialState> open_start(const RunConfig& config, const std::filesystem::path& start);

/// Answers for one run after another, and keeps what they have in common.
class RunCheck {
 public:
  using MakeBackend = std::function<std::unique_ptr<Backend>(const std::string& name)>;
  explicit RunCheck(MakeBackend make_backend) : make_backend_(std::move(make_backend)) {}

  /// Throws Error for all that training would refuse before its first step: a backend that is not
  /// here, and what open_start and open_stages throw for, as well as weights that are not finite.
  /// `start_is_to_come`: the run starts from another that is not complete yet.
  void check(const RunConfig& config, bool start_is_to_come = false);

  /// The same, and for a run that cannot begin in `directory`, or with `resume` not go on there.
  void check(const RunConfig& config, const RunDirectory& directory, bool resume);

  /// The run_notes of all runs that were checked, each once.
  const std::vector<std::string>& notes() const { return notes_; }

  /// The identity that the run would have (identity.hpp). Initial weights are part of it where
  /// config.init_from names some; those drawn at random follow from the configuration.
  Identity identity(const RunConfig& config);

  /// Those parts of it that initial weights, which config.init_from names, make: their hash first.
  const Identity& initial_state(const RunConfig& config);

  /// Gives the backends back, with what they hold of a device; more are made when needed.
  void release_backends() { backends_.clear(); }

 private:
  Backend& backend(const std::string& name);
  const DataSources& sources(const DataConfig& config, const ModelVocabulary& model,
                             const std::string& where, std::span<const ColumnSpec> columns);
  OpenData opener();

  struct Opened {
    DataConfig config;
    ModelVocabulary model;
    std::vector<std::string> columns;  ///< their names
    std::unique_ptr<DataSources> sources;
  };
  MakeBackend make_backend_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
  std::vector<Opened> opened_;
  std::map<std::string, Identity> initial_states_;  ///< by backend, file and model
  std::vector<std::string> notes_;
  std::set<std::string> sound_starts_;  ///< by file and model
};

}  // namespace fp8lab
