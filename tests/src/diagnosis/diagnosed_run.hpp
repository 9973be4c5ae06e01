// A small run with a checkpoint in its middle.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "src/backend/factory.hpp"
#include "src/diagnosis/checkpoint_step.hpp"
#include "src/io/hdf5/run_reader.hpp"
#include "src/train/trainer.hpp"
#include "tests/scratch_directory.hpp"

namespace fp8lab::test {

/// Three steps of two micro-batches, all of them logged, and the checkpoint after the second.
class DiagnosedRun {
 public:
  explicit DiagnosedRun(const std::string& recipe, const std::vector<Assignment>& settings = {})
      : config_(parse_run_config(text(recipe), "run.toml", settings)),
        backend_(make_backend("cpu", 2)) {
    TrainerOptions options;
    options.directory = folder_.path() / "run";
    options.progress = [&](const Progress& progress) {
      if (progress.step != 3) return;
      // It is written beside the third step.
      while (!std::filesystem::exists(run_folder() / kFile)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      std::filesystem::copy(run_folder() / kFile, checkpoint());
    };
    Trainer(config_, *backend_, options).run();
    backend_ = make_backend("cpu", 2);
  }

  CheckpointedRun at_checkpoint() const {
    return open_checkpointed_run(config_, std::make_shared<const CheckpointFile>(checkpoint()));
  }
  DataSources data() const {
    return open_sources(config_.stages[0].data, config_.model.vocab_size, "stage");
  }
  StepBatch next_step() const { return batch_of_step(at_checkpoint(), data(), 0); }
  Backend& backend() { return *backend_; }
  const RunConfig& config() const { return config_; }

  /// What the run logged at its third step: one member of OperandStatistics for each slot of each
  /// layer.
  std::vector<double> logged(const std::string& statistic) const {
    const std::vector<double> all = read_statistic(run_folder() / "run.h5", statistic);
    const auto row = static_cast<std::ptrdiff_t>(all.size() / 3);
    return {all.end() - row, all.end()};
  }

  /// The held-out loss that the run logged after `step`.
  double evaluated(std::int64_t step) const {
    for (const EvalRecord& record : read_run(run_folder() / "run.h5").eval) {
      if (record.step == step) return record.loss;
    }
    return -1;
  }

 private:
  static constexpr const char* kFile = "checkpoint.safetensors";

  static std::string text(const std::string& recipe) {
    return "name = \"r\"\nrecipe = \"" + recipe +
           "\"\nseed = 5\n"
           "[model]\nvocab_size = 272\nhidden_size = 64\nintermediate_size = 128\n"
           "num_hidden_layers = 2\nnum_attention_heads = 2\nnum_key_value_heads = 1\n"
           "head_dim = 32\ninitializer_range = 0.08\n"
           "[logging]\nstatistics_every_steps = 1\ncheckpoint_every_steps = 2\n"
           "[[stages]]\nname = \"s\"\nkind = \"sft\"\nsteps = 3\nbatch_sequences = 2\n"
           "micro_batch_sequences = 1\nsequence_length = 128\nlearning_rate.warmup_steps = 0\n"
           "data.form = \"prompt_response\"\n"
           "[stages.eval]\nsequences = 2\ndata.form = \"prompt_response\"\n"
           "data.held_out = true\n";
  }

  std::filesystem::path run_folder() const { return folder_ / "run"; }
  std::filesystem::path checkpoint() const { return folder_ / kFile; }

  ScratchDirectory folder_;
  RunConfig config_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace fp8lab::test
