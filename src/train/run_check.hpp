// What a run would be, known before it is started: whether it can be trained, and its identity.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/io/run_log.hpp"

namespace fp8lab {

/// What the evaluation of a stage reads beside its opened data; `eval` is null without one. Throws
/// Error when the data give no target, or cannot be evaluated as `stage.eval` asks.
EvaluationInputs check_stage_data(const RunConfig& run, const StageConfig& stage,
                                  const DataSources& train, const DataSources* eval);

/// Throws Error for a run of [growth] that starts from nothing; `start` as for Execution.
void check_growth(const RunConfig& config, const std::filesystem::path& start);

/// Answers for one run after another, and keeps what they have in common.
class RunCheck {
 public:
  using MakeBackend = std::function<std::unique_ptr<Backend>(const std::string& name)>;
  explicit RunCheck(MakeBackend make_backend) : make_backend_(std::move(make_backend)) {}

  /// Throws Error when there is no such backend here, when a stage's recipe fits neither model nor
  /// backend, when data are missing, of another vocabulary or without targets, and when initial
  /// weights are missing.
  void check(const RunConfig& config);

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
                             const std::string& where);

  struct Opened {
    DataConfig config;
    ModelVocabulary model;
    std::unique_ptr<DataSources> sources;
  };
  MakeBackend make_backend_;
  std::map<std::string, std::unique_ptr<Backend>> backends_;
  std::vector<Opened> opened_;
  std::map<std::string, Identity> initial_states_;  ///< by backend, file and model
};

}  // namespace fp8lab
