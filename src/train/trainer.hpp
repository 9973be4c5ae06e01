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
#include "src/evaluation/evaluator.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/train/run_directory.hpp"
#include "src/train/step/execution.hpp"
#include "src/train/watch/run_watch.hpp"

namespace fp8lab {

enum class RunOutcome { complete, interrupted };

/// Progress after a step, for display.
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
  std::map<std::string, std::string> extra_meta;  ///< for /meta/extra.*: the arm of a study, ...
  std::string code_version;
  std::string simd_target;
  const std::atomic<bool>* stop = nullptr;  ///< set by a signal: write a checkpoint and return
  std::function<void(const Progress&)> progress;
  /// Called when the run file is open, with the seconds of the run so far and its last recorded
  /// step.
  std::function<void(double, std::int64_t)> opened;
  std::function<void(const std::string&)> tell;  ///< held-out losses and events, one line each
  std::function<void(const std::string&)>
      phase;  ///< name of a phase that may take long; "" at its end
};

/// Runs every stage of `config`. The directory must contain no run unless options.resume is set.
class Trainer {
 public:
  Trainer(const RunConfig& config, Backend& backend, TrainerOptions options);
  ~Trainer();

  /// Returns remarks on data and initial weights (Execution::notes).
  const std::vector<std::string>& notes() const { return execution_->notes(); }

  /// Returns `interrupted` after a checkpoint if the stop flag was set. Throws RuntimeFailure if
  /// the loss is not finite and the policy is to stop.
  RunOutcome run();

 private:
  /// Objects of one stage that its steps do not need.
  struct Stage;

  /// Returns false if the run in the directory is complete.
  bool open_log();
  /// Returns `log`, whose events also go to options.tell.
  std::unique_ptr<RunLog> told(std::unique_ptr<RunLog> log) const;
  void record_changes(const RunMeta& before);
  RunMeta make_meta();
  /// Returns the texts of all recipes that the configuration names, including those of evaluations.
  RecipeTexts recipe_texts() const;
  /// Returns the recipe whose quantizers /tensors names: that of the run if a stage uses it, else
  /// that of the first stage.
  const Recipe& named_recipe() const;
  /// Returns the logged operands as `recipe` quantizes them in `stage`; none if none is logged.
  std::vector<TensorName> tensor_names(const StageConfig& stage, const Recipe& recipe) const;
  /// Returns the same for each recipe of the run other than named_recipe(), by its name.
  std::map<std::string, std::vector<TensorName>> other_quantizers() const;
  Stage begin_stage();
  void change_recipe(Stage& stage);
  void make_evaluator(Stage& stage);
  void train_step(const Stage& stage);
  void record_update_errors(const StepRecord& record, const UpdateErrors& errors);
  /// Writes the rows of /documents of one evaluation.
  void record_documents(std::int64_t step, std::int32_t stage, bool in_bf16,
                        const HeldOutLoss& loss);
  void record_step(const Stage& stage, const StepTaken& taken);
  void record_nonfinite(const StepRecord& record);
  bool evaluation_is_due(const Stage& stage) const;
  /// Returns false if the stop flag ended the evaluation: nothing is recorded, and a resumed run
  /// repeats it.
  bool evaluate(Stage& stage);
  /// Returns true if the final weights of the stage are also to be evaluated in BF16: the stage
  /// quantizes, and no such evaluation is recorded.
  bool is_worth_bf16(const Stage& stage) const;
  /// Evaluates the final weights of stage `index` in BF16, in the memory that the stage freed: the
  /// held-out loss without the recipe's arithmetic. Returns false if stopped.
  bool evaluate_in_bf16(std::size_t index);
  void say(const std::string& phase) const;
  /// Records the previous checkpoint and starts the next one, which is written during the next
  /// steps.
  void checkpoint();
  /// Waits for the present checkpoint and records it. Throws the error that prevented writing it.
  void record_checkpoint(bool wait);
  /// Runs every stage; does not wait for the last checkpoint.
  RunOutcome run_stages();
  double elapsed() const;

  RunConfig config_;
  ObservedBackend backend_;
  TrainerOptions options_;
  RunDirectory directory_;
  std::unique_ptr<Execution> execution_;
  std::unique_ptr<RunWatch> watch_;
  std::unique_ptr<RunLog> log_;
  /// Events of the first stage of a resumed run. It begins before the run file is truncated, so
  /// that a checkpoint that cannot be loaded leaves the file unchanged.
  std::optional<std::vector<EventRecord>> begun_;
  CheckpointWriter writer_;
  double start_seconds_ = 0;
  std::int64_t last_evaluation_ = 0;  ///< step of the last recorded evaluation
  std::int64_t last_in_bf16_ = 0;     ///< step of the last recorded evaluation in BF16
};

}  // namespace fp8lab
