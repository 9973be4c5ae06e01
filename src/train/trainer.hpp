// One training loop for all stages: pretrain, continual pre-training and supervised fine-tuning.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/io/run_log.hpp"
#include "src/model/transformer.hpp"
#include "src/train/amax_history.hpp"
#include "src/train/checkpoint.hpp"
#include "src/train/run_directory.hpp"
#include "src/train/run_memory.hpp"

namespace fp8lab {

enum class RunOutcome { complete, interrupted };

/// What a progress display may show after a step.
struct Progress {
  std::int64_t step = 0, total_steps = 0;
  std::string stage;
  double loss = 0, grad_norm = 0, learning_rate = 0;
  double tokens_per_second = 0;  ///< all tokens of the step, masked ones too
  double seconds_left = 0;
};

struct TrainerOptions {
  std::filesystem::path directory;  ///< holds run.h5 and checkpoint.safetensors
  bool resume = false;
  std::filesystem::path init_from;  ///< weights to start from; overrides config.init_from, and
                                    ///< is told apart by the initial weights' hash alone
  std::map<std::string, std::string> extra_meta;  ///< for /meta/extra.*: the arm of a study, ...
  std::string code_version;
  std::string simd_target;
  const std::atomic<bool>* stop = nullptr;  ///< set by a signal: checkpoint and return
  std::function<void(const Progress&)> progress;
  std::function<void(const std::string&)> phase;  ///< what may take long now; "": nothing
};

/// The training data of a stage as its steps read them, from the beginning.
Mixture training_stream(const DataSources& data, const RunConfig& config, const StageConfig& stage);

/// Runs every stage of `config`. The directory must hold no run, or options.resume be set.
class Trainer {
 public:
  Trainer(const RunConfig& config, Backend& backend, TrainerOptions options);
  ~Trainer();

  /// Returns `interrupted` after a checkpoint when the stop flag was raised. Throws RuntimeFailure
  /// when the loss is not finite and the policy says stop.
  RunOutcome run();

 private:
  /// What exists for the length of one stage.
  struct Stage;
  /// The opened data of one stage, for the length of the run.
  struct StageData {
    DataSources train;
    std::optional<DataSources> eval;
    Mixture stream;
  };

  void open_data();
  /// Memory of the largest stage, in one piece.
  void reserve_memory();
  void load_initial_weights();
  /// False when the run in the directory is complete.
  bool open_log();
  void record_changes(const RunMeta& before);
  RunMeta make_meta();
  std::vector<TensorName> tensor_names() const;
  std::unique_ptr<Stage> begin_stage(std::int64_t index);
  /// Where the data of a stage begin: where the last stage of its kind that read the same ones
  /// stopped, unless it restarts them.
  StreamPosition first_position(std::int64_t stage) const;
  void continue_amax_histories(Stage& stage);
  void train_step(Stage& stage);
  void record_step(Stage& stage, std::int64_t tokens, const StepResults& results);
  void record_nonfinite(const StepRecord& record);
  bool evaluation_is_due(const Stage& stage) const;
  /// False when the stop flag ended it: nothing is recorded, and the resumed run makes it again.
  bool evaluate(Stage& stage);
  void say(const std::string& phase) const;
  void checkpoint(Stage& stage);
  double elapsed() const;

  RunConfig config_;
  Backend& backend_;
  TrainerOptions options_;
  RunDirectory directory_;
  Recipe recipe_;
  std::vector<Recipe> stage_recipes_;
  std::vector<StageData> data_;
  std::unique_ptr<RunMemory> memory_;
  std::unique_ptr<RunLog> log_;
  RunPosition position_;
  std::int64_t total_steps_ = 0;
  AmaxHistories histories_;  ///< of the stage before the present one, or of the initial checkpoint
  Identity identity_;
  double start_seconds_ = 0;
  std::int64_t last_evaluation_ = 0;  ///< step of the last one that is recorded
};

}  // namespace fp8lab
