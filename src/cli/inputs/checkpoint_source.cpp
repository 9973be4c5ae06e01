#include "src/cli/inputs/checkpoint_source.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/backend_option.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/io/shell_word.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab::cli {

using nlohmann::ordered_json;

namespace {

/// Limit of the steps whose data are skipped to reach a batch.
constexpr std::int64_t kMostSteps = 100000;

/// Reduces the micro-batches of the current stage if --sequences requires it. The data
/// of a step stay the same.
void shorten_micro_batch(CheckpointedRun& run, const Values& values, const std::string& command) {
  if (values.count("sequences") == 0) return;
  const auto sequences = values["sequences"].as<std::int64_t>();
  StageConfig& stage = run.config.stages[static_cast<std::size_t>(run.position.stage)];
  if (sequences < 1 || sequences > stage.micro_batch_sequences ||
      stage.batch_sequences % sequences != 0) {
    throw InputError({.where = command,
                      .key = "--sequences",
                      .found = fmt::to_string(sequences),
                      .accepted = fmt::format(
                          "at most the {} of a micro-batch, and a divisor of the {} of a step",
                          stage.micro_batch_sequences, stage.batch_sequences)});
  }
  stage.micro_batch_sequences = sequences;
}

}  // namespace

void add_step_options(Options& options, std::vector<std::string> backends) {
  options.add("batch", value<std::int64_t>(1),
              "whose data: those of the first micro-batch of the N-th step after the checkpoint");
  options.add("sequences", value<std::int64_t>(),
              "only the first N sequences of the micro-batch, in less time");
  options.add("backend", one_of(std::move(backends)), "default: the run's");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  add_look_in(options);
}

CheckpointSource open_checkpoint_source(const std::string& path, const Values& values,
                                        const std::string& command) {
  const auto batch = values["batch"].as<std::int64_t>();
  if (batch < 1 || batch > kMostSteps) {
    throw InputError({.where = command,
                      .key = "--batch",
                      .found = fmt::to_string(batch),
                      .accepted = fmt::format("1 to {}", kMostSteps)});
  }
  ModelSource model = open_model(path, folders_to_look_in(values, command));
  if (model.checkpoint == nullptr) {
    throw InputError({.where = command,
                      .reason = fmt::format(
                          "{} is neither a run with a checkpoint nor a checkpoint of one; what "
                          "recipes cost a model that no run trained: fp8lab assess {} --data TEXT",
                          path, shell_path(path))});
  }
  if (!model.run) {
    throw InputError(
        {.where = command,
         .reason = fmt::format("no run.h5 lies beside {}, which says what the run trains on",
                               model.checkpoint->path())});
  }
  if (read_checkpoint(*model.checkpoint).identity != hash_of(model.run->identity)) {
    throw InputError(
        {.where = command,
         .reason = fmt::format("{} is a checkpoint of another run than the run.h5 beside it",
                               model.checkpoint->path())});
  }
  std::vector<Assignment> assignments;
  if (values.count("backend") != 0) {
    assignments.push_back({"backend", values["backend"].as<std::string>()});
  }
  const RunConfig config = recorded_run(*model.run, path, assignments);
  require_accepted_backend(values, config, path, command);
  CheckpointedRun run = open_checkpointed_run(config, model.checkpoint);
  shorten_micro_batch(run, values, command);
  const StageConfig& stage = run.stage();
  model.require_unchanged(recipe_part(stage, run.stage_recipe()), run.recipe.hash,
                          "start the run anew");
  const DataSources data =
      open_sources(model.places.training_data(stage), model.vocabulary, "stage " + stage.name,
                   make_objective(stage.objective)->own_columns());
  model.require_unchanged("training data of stage " + stage.name, content_hash(data),
                          "start the run anew");
  print_notes(vocabulary_notes(data, model.vocabulary));
  StepBatch step = batch_of_step(run, data, batch - 1);
  return {std::move(model), std::move(run), std::move(step)};
}

DataSources open_evaluation_data(const CheckpointSource& source) {
  const StageConfig& stage = source.run.stage();
  DataSources data = open_sources(source.model.places.evaluation_data(stage),
                                  source.model.vocabulary, "stage " + stage.name);
  source.model.require_unchanged("evaluation data of stage " + stage.name, content_hash(data),
                                 "start the run anew");
  return data;
}

void print_step(const CheckpointSource& source, const Backend& backend) {
  const CheckpointedRun& run = source.run;
  fmt::print("{}: stage {}, recipe {}, checkpoint after step {}; {} x {} tokens of step {} on {}\n",
             source.model.name, run.stage().name, run.recipe.name, run.position.step,
             source.step.batch.sequences, source.step.batch.sequence_length,
             source.step.context.step, backend.device());
}

ordered_json step_json(const CheckpointSource& source, const Backend& backend) {
  const CheckpointedRun& run = source.run;
  return {{"run", source.model.name},
          {"stage", run.stage().name},
          {"recipe", run.recipe.name},
          {"recipe_hash", run.recipe.hash},
          {"checkpoint_step", run.position.step},
          {"step", source.step.context.step},
          {"sequences", source.step.batch.sequences},
          {"sequence_length", source.step.batch.sequence_length},
          {"backend", backend.name()},
          {"device", backend.device()}};
}

}  // namespace fp8lab::cli
