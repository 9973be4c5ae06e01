// A run at its checkpoint as the argument of a command, and the step that follows there.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "emulation/backend.hpp"
#include "src/cli/model_source.hpp"
#include "src/cli/options.hpp"
#include "src/data/mixture.hpp"
#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab::cli {

/// Adds --batch, --sequences, --backend, which accepts `backends`, and --threads.
void add_step_options(Options& options, std::vector<std::string> backends);

struct CheckpointSource {
  ModelSource model;
  CheckpointedRun run;
  StepBatch step;
};

/// `path` is a run directory, or a checkpoint beside its run file. The recipe and the data of the
/// present stage must be those that the run began with. Throws Error for anything else.
CheckpointSource open_checkpoint_source(const std::string& path, const Values& values,
                                        const std::string& command);

/// Those of the stage's evaluation, which must be those of the run.
DataSources open_evaluation_data(const CheckpointSource& source);

/// What was captured, in a line and for machines.
void print_step(const CheckpointSource& source, const Backend& backend);
nlohmann::ordered_json step_json(const CheckpointSource& source, const Backend& backend);

/// JSON has neither infinity nor NaN: they are null.
nlohmann::ordered_json finite_json(double value);

}  // namespace fp8lab::cli
