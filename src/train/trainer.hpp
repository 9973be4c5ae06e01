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
  std::map<std::string, std::string> extra_meta;  ///< for /meta/extra.*: the arm of a study, ...
  std::string code_version;
  std::string simd_target;
  const std::atomic<bool>* stop = nullptr;  ///< set by a signal: checkpoint and return
  std::function<void(const Progress&)> progress;
  /// The run file is open; seconds of the run so far, and its last step that is in there.
  std::function<void(double, std::int64_t)> opened;
  std::function<void(const std::string&)> tell;   ///< held-out losses and events, one line each
  std::function<void(const std::string&)> phase;  ///< what may take long now; "": nothing
};

/// Runs every stage of `config`. The directory must hold no run, or options.resume be set.
class Trainer {
 public:
  Trainer(const RunConfig& config, Backend& backend, TrainerOptions options);
  ~Trainer();

  /// What a user should know about data and start (Execution::notes).
  const std::vector<std::string>& notes() const { return execution_->notes(); }

  /// Returns `interrupted` after a checkpoint when the stop flag was raised. Throws RuntimeFailure
  /// when the loss is not finite and the policy says stop.
  RunOutcome run();

 private:
  /// What exists for the length of one stage beside what its steps need.
  struct Stage;

  /// False when the run in the directory is complete.
  bool open_log();
  /// `log`, told to options.tell.
  std::unique_ptr<RunLog> told(std::unique_ptr<RunLog> log) const;
  void record_changes(const RunMeta& before);
  RunMeta make_meta();
  /// Of every recipe that the configuration names, those of evaluations included.
  RecipeTexts recipe_texts() const;
  /// The recipe whose quantizers /tensors names: that of the run where a stage is trained in it,
  /// else the first stage's.
  const Recipe& named_recipe() const;
  std::vector<TensorName> tensor_names() const;
  Stage begin_stage();
  void change_recipe(Stage& stage);
  void make_evaluator(Stage& stage);
  void train_step(const Stage& stage);
  void record_update_errors(const StepRecord& record, const UpdateErrors& errors);
  /// Rows of /documents of one evaluation.
  void record_documents(std::int64_t step, std::int32_t stage, bool in_bf16,
                        const HeldOutLoss& loss);
  void record_step(const Stage& stage, const StepTaken& taken);
  void record_nonfinite(const StepRecord& record);
  bool evaluation_is_due(const Stage& stage) const;
  /// False when the stop flag ended it: nothing is recorded, and the resumed run makes it again.
  bool evaluate(Stage& stage);
  /// True where the weights that the stage leaves are also evaluated in BF16: it quantizes, and
  /// that has not been recorded.
  bool is_worth_bf16(const Stage& stage) const;
  /// The held-out loss of stage `index`, which has ended, in the memory that it gave back: what its
  /// weights are worth without the arithmetic of its recipe. False: stopped.
  bool evaluate_in_bf16(std::size_t index);
  void say(const std::string& phase) const;
  /// Begins one, which is written beside the next steps, and records the one before.
  void checkpoint();
  /// Records the checkpoint under way once it is on the disk. Throws what kept it from there.
  void record_checkpoint(bool wait);
  /// Every stage, but without an end to the last checkpoint.
  RunOutcome run_stages();
  double elapsed() const;

  RunConfig config_;
  ObservedBackend backend_;
  TrainerOptions options_;
  RunDirectory directory_;
  std::unique_ptr<Execution> execution_;
  std::unique_ptr<RunWatch> watch_;
  std::unique_ptr<RunLog> log_;
  /// What happened to the first stage of a resumed run, which begins before the run file is cut: a
  /// checkpoint that cannot be loaded leaves that as it was.
  std::optional<std::vector<EventRecord>> begun_;
  CheckpointWriter writer_;
  double start_seconds_ = 0;
  std::int64_t last_evaluation_ = 0;  ///< step of the last one that is recorded
  std::int64_t last_in_bf16_ = 0;     ///< the same of those of weights in BF16
};

}  // namespace fp8lab
