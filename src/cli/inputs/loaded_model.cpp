#include "src/cli/inputs/loaded_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/backend/factory.hpp"
#include "src/cli/command.hpp"
#include "src/cli/progress.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab::cli {
namespace {

constexpr std::int64_t kDefaultLength = 512;

/// Returns a single-stage run for a model without a run.
std::string made_up_run(const ModelSource& source) {
  const ModelConfig& model = source.require_model();
  return fmt::format(
             "name = \"eval\"\n[[stages]]\nname = \"eval\"\nkind = \"sft\"\nsteps = 1\n"
             "batch_sequences = 1\nsequence_length = {}\n",
             std::min(kDefaultLength, model.max_position_embeddings)) +
         model_table_text(model);
}

}  // namespace

void add_pass_options(Options& options, std::vector<std::string> backends) {
  options.add("backend", one_of(std::move(backends)),
              "what computes (default: the run's backend, else cpu)");
  options.add("threads", value<int>(0), "number of CPU threads; 0: one for each processor");
  options.add("sequence-length", value<std::int64_t>(),
              "longest sequence in tokens (default: the run's, else 512)");
  options.add("sequences-together", value<std::int64_t>(),
              "batch size of a forward pass (default: the run's, else 1)");
  add_look_in(options);
}

void add_model_options(Options& options, std::vector<std::string> backends) {
  options.add("recipe", value<std::string>(),
              "recipe, by name or file (default: that of the run's last stage, else bf16)");
  add_pass_options(options, std::move(backends));
}

RunConfig pass_run(const ModelSource& source, const Values& values, const std::string& command) {
  return pass_run(source, values, command, OptionAssignments(values, command));
}

RunConfig pass_run(const ModelSource& source, const Values& values, const std::string& command,
                   const OptionAssignments& more) {
  OptionAssignments all(values, command);
  all.add("backend", "backend");
  all.add("sequence-length", "stages.*.sequence_length");
  all.add("sequences-together", "stages.*.batch_sequences");
  all.add("sequences-together", "stages.*.micro_batch_sequences");
  all.append(more);
  return all.reading([&] {
    return source.run ? recorded_run(*source.run, source.name, all.all())
                      : parse_run_config(made_up_run(source), source.name, all.all());
  });
}

RunConfig model_run(const ModelSource& source, const Values& values, const std::string& command) {
  return model_run(source, values, command, OptionAssignments(values, command));
}

RunConfig model_run(const ModelSource& source, const Values& values, const std::string& command,
                    const OptionAssignments& more) {
  OptionAssignments all(values, command);
  all.add("recipe", "recipe");
  all.add("recipe", "stages.*.recipe", "\"\"");
  all.add("recipe", "stages.*.recipe_at", "[]");
  all.add("recipe", "exact", "[]");
  all.append(more);
  RunConfig run = pass_run(source, values, command, all);
  if (!run.exact.empty()) {
    throw InputError(
        {.reason = fmt::format("{} replaces sources of error by exact arithmetic (exact = [...])",
                               source.name),
         .accepted = "numerics named by --recipe"});
  }
  return run;
}

const StageConfig& last_stage(const RunConfig& run) { return run.stages.back(); }

namespace {

/// Returns the recipe in use at the checkpoint if it is in the last stage, else the recipe with
/// which the stage is planned to end.
StageRecipe last_recipe(const ModelSource& source, const RunConfig& run) {
  const StageConfig& stage = last_stage(run);
  std::size_t index = recipe_of_step(stage, stage.steps, false);
  if (source.checkpoint != nullptr && source.run) {
    const RunPosition position = read_checkpoint(*source.checkpoint).position;
    check_position(position, run, source.checkpoint->path());
    const bool is_last = position.stage + 1 == static_cast<std::int64_t>(run.stages.size());
    if (is_last) index = static_cast<std::size_t>(position.recipe);
  }
  return recipes_of(run, stage)[index];
}

}  // namespace

LoadedModel::LoadedModel(const ModelSource& source, const RunConfig& run, const Values& values)
    : checkpoint_(source.checkpoint),
      source_(source.name),
      backend_(make_backend(run.backend, threads_of(values, "model"))) {
  const StageConfig& stage = last_stage(run);
  if (values.count("recipe") != 0) {
    recipe_ = load_recipe(run.recipe);
  } else {
    const StageRecipe last = last_recipe(source, run);
    recipe_ = load_recipe(last.name, run.recorded);
    source.require_unchanged(recipe_part(stage, last), recipe_.hash, "name a recipe with --recipe");
  }
  PhaseLine phase;
  phase.begin("loading weights of " + source.name);
  parameters_ = std::make_unique<Parameters>(*backend_, run.model, run.optimizer,
                                             recipe_.activation_dtype, Purpose::inference);
  load_parameters(*source.tensors, source.name, *parameters_);
  phase.begin("allocating activations");
  shape_ = {stage.micro_batch_sequences, stage.sequence_length, run.attention, {}};
  shape_.memory.loss_chunk = run.memory.loss_chunk;  // quantizers of the head may depend on it
  transformer_ = make_transformer(Purpose::inference);
  context_.seed = run.seed;
  // Use the random roundings of the run's evaluation after this step.
  if (checkpoint_ != nullptr) {
    context_.step = static_cast<std::uint32_t>(read_checkpoint(*checkpoint_).position.step);
  }
}

std::unique_ptr<Transformer> LoadedModel::make_transformer(Purpose purpose) const {
  auto transformer = std::make_unique<Transformer>(*backend_, *parameters_, parameters_->model(),
                                                   recipe_, shape_, purpose);
  if (checkpoint_ != nullptr) {
    load_quantizer_states(*checkpoint_, *backend_, transformer->operand_sets());
  } else if (transformer->has_delayed_scales()) {
    throw InputError(
        {.where = source_,
         .reason = fmt::format(
             "recipe {} scales by an amax history, which only a checkpoint of its run has",
             recipe_.name),
         .accepted = "a recipe without delayed scaling"});
  }
  return transformer;
}

}  // namespace fp8lab::cli
