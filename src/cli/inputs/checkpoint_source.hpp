// A run at its checkpoint as the argument of a command, and the step that follows the checkpoint.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "emulation/backend.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/options.hpp"
#include "src/data/mixture.hpp"
#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab::cli {

/// Adds --batch, --sequences, --backend (which accepts `backends`), and --threads.
void add_step_options(Options& options, std::vector<std::string> backends);

struct CheckpointSource {
  ModelSource model;
  CheckpointedRun run;
  StepBatch step;
};

/// Opens `path`, a run directory or a checkpoint beside its run file. Throws Error for anything
/// else, and if the recipe or the data of the current stage have changed since the run began.
CheckpointSource open_checkpoint_source(const std::string& path, const Values& values,
                                        const std::string& command);

/// Opens the stage's evaluation data. Throws Error if they differ from those of the run.
DataSources open_evaluation_data(const CheckpointSource& source);

/// Describe the captured step, in one line and as JSON.
void print_step(const CheckpointSource& source, const Backend& backend);
nlohmann::ordered_json step_json(const CheckpointSource& source, const Backend& backend);

}  // namespace fp8lab::cli
