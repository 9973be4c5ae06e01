#include "src/train/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "src/architecture/layer_names.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/train/checkpoint/checkpoint_writer.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/plan/time_plan.hpp"
#include "src/train/step/schedule.hpp"

namespace fp8lab {
namespace {

using ReportPhase = std::function<void(const std::string&)>;

/// Returns how often something happens in `steps` steps that happens every `every` steps (0: never)
/// and at the end.
std::int64_t times(std::int64_t steps, std::int64_t every) {
  return every > 0 ? (steps + every - 1) / every : 1;
}

/// The times of a run's stages. Stages whose steps and evaluations consist of the same operations
/// under one recipe are timed once.
class StageTimes {
 public:
  StageTimes(const RunConfig& config, Backend& backend, const ReportPhase& phase)
      : config_(config), backend_(backend), phase_(phase) {}

  StageTime of(const StageConfig& stage, const Recipe& recipe) {
    std::string key = recipe.hash;
    for (const WorkLog& log : {record_step(config_, stage, recipe, backend_),
                               record_held_out(config_, stage, recipe, backend_)}) {
      for (const auto& [kind, done] : log) {
        key += fmt::format("\n{}: {} calls, {}", kind, done.calls, done.work);
      }
    }
    if (stage.eval && stage.eval->weights_in_bf16) key += "\nand in bf16";
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    phase_(fmt::format("timing the operations of stage {}", stage.name));
    return known_[key] = plan_time(config_, stage, recipe, backend_);
  }

 private:
  const RunConfig& config_;
  Backend& backend_;
  const ReportPhase& phase_;
  std::map<std::string, StageTime> known_;
};

/// Returns the seconds that `steps` steps of a stage add to a run. Checkpoints are written during
/// the steps of a device; on a host, the same threads compute and write.
void add_steps(RunTime& run, const RunConfig& config, const StageConfig& stage,
               const StageTime& time, std::int64_t steps, double checkpoint, bool is_on_host) {
  if (steps == 0) return;
  const std::int64_t every = config.logging.statistics_every_steps;
  const std::int64_t measured = every > 0 ? times(steps, every) : 0;
  run.steps += time.step.total() * static_cast<double>(steps - measured) +
               time.with_statistics * static_cast<double>(measured);
  if (stage.eval) {
    run.evaluations += time.held_out * static_cast<double>(times(steps, stage.eval->every_steps));
    run.evaluations += time.in_bf16;
  }
  const std::int64_t written = is_on_host ? times(steps, config.logging.checkpoint_every_steps) : 1;
  run.checkpoints += checkpoint * static_cast<double>(written);
}

}  // namespace

std::string describe(const RunTime& time) {
  return fmt::format(
      "{:.3g} s (start {:.2g}, steps {:.3g}, evaluations {:.2g}, checkpoints {:.2g})", time.total(),
      time.start, time.steps, time.evaluations, time.checkpoints);
}

RunNeeds plan_needs(const RunConfig& config, Backend& backend, const ReportPhase& phase) {
  RunNeeds needs;
  needs.is_on_host = backend.is_on_host();
  StageTimes times(config, backend, phase);
  for (const StageConfig& stage : config.stages) {
    for (const StageRecipe& of : recipes_of(config, stage)) {
      const Recipe recipe = load_recipe(of.name, config.recorded);
      const MemoryPlan memory = plan_memory(config, stage, recipe, backend);
      needs.bytes = std::max(needs.bytes, memory.total());
      needs.checkpoint = std::max(needs.checkpoint, memory.checkpoint);
      if (of.steps == 0) continue;
      const StageTime time = times.of(stage, recipe);
      add_steps(needs.time, config, stage, time, of.steps, plan_checkpoint(memory.checkpoint),
                needs.is_on_host);
      needs.longest_step = std::max({needs.longest_step, time.step.total(), time.with_statistics});
    }
  }
  needs.time.start = plan_start(config, backend);
  return needs;
}

MemoryTogether memory_together(std::vector<RunNeeds> runs, std::size_t count) {
  const auto on_host = [](const RunNeeds& run) { return run.is_on_host ? run.bytes : 0; };
  const auto on_device = [](const RunNeeds& run) { return run.is_on_host ? 0 : run.bytes; };
  const auto sort_by = [&](const auto& bytes) {
    std::sort(runs.begin(), runs.end(),
              [&](const RunNeeds& a, const RunNeeds& b) { return bytes(a) > bytes(b); });
  };
  count = std::min(count, runs.size());
  MemoryTogether memory;
  sort_by(on_device);
  for (std::size_t i = 0; i < count; ++i) memory.device += on_device(runs[i]);
  sort_by([&](const RunNeeds& run) { return on_host(run) + run.checkpoint; });
  for (std::size_t i = 0; i < count; ++i) memory.host += on_host(runs[i]);
  for (std::size_t i = 0; i < count; ++i) {
    memory.copies += static_cast<std::int64_t>(checkpoint_memory(
        static_cast<std::uint64_t>(runs[i].checkpoint), memory.host + memory.copies));
  }
  return memory;
}

std::vector<std::string> stage_warnings(const RunConfig& config, const StageConfig& stage,
                                        const Recipe& recipe) {
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const int layers = static_cast<int>(config.model.layer_count());
  std::vector<std::string> texts;
  std::map<std::string, std::vector<std::string>> layers_of;
  const Declaration declaration = declaration_of(config.model);
  for (const LinearDeclaration& layer : declaration.linears()) {
    const LinearRecipe& linear = recipe.for_layer(layer.name, layers);
    for (const std::string& warning : warnings(linear, tokens, layer.in, layer.out)) {
      if (layers_of[warning].empty()) texts.push_back(warning);
      layers_of[warning].push_back(layer.name);
    }
  }
  std::vector<std::string> lines;
  for (const std::string& text : texts) {
    const std::vector<std::string>& names = layers_of[text];
    const std::string pattern = layer_pattern(names, layers);
    lines.push_back(names.size() == 1
                        ? fmt::format("{}: {}", pattern, text)
                        : fmt::format("{} ({} layers): {}", pattern, names.size(), text));
  }
  return lines;
}

namespace {

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; }

/// Describes how checkpoints are written with the memory that is free now.
std::string describe_checkpoint(const MemoryPlan& memory, const Backend& backend) {
  const auto copied = static_cast<std::int64_t>(checkpoint_memory(
      static_cast<std::uint64_t>(memory.checkpoint), backend.is_on_host() ? memory.total() : 0));
  if (copied >= memory.checkpoint) {
    return fmt::format("checkpoint {:.1f} MiB, copied on the host and written beside the steps\n",
                       mib(memory.checkpoint));
  }
  return fmt::format(
      "checkpoint {:.1f} MiB, copied through {:.1f} MiB on the host: the next step waits for "
      "the "
      "disk to take the rest\n",
      mib(memory.checkpoint), mib(copied));
}

/// Returns the lines of describe_plan about one recipe of a stage, and adds its seconds to the run.
/// `described`: hashes of recipes whose page is printed, each with its stage.
std::string describe_recipe(const RunConfig& config, const StageConfig& stage,
                            const StageRecipe& of, Backend& backend, StageTimes& times,
                            RunTime& run, std::map<std::string, std::string>& described) {
  const Recipe recipe = load_recipe(of.name, config.recorded);
  std::string text;
  if (of.is_fallback) {
    text += fmt::format("falls back to recipe {} ({})\n", recipe.name, recipe.hash);
  } else if (of.after > 0) {
    text += fmt::format("after {} steps: recipe {} ({})\n", of.after, recipe.name, recipe.hash);
  }
  const auto [known, is_new] = described.emplace(recipe.hash, stage.name);
  text += is_new ? describe(recipe)
                 : fmt::format("{}: described at stage {}\n", recipe.name, known->second);
  validate_stage(config, stage, recipe, backend);
  for (const std::string& warning : stage_warnings(config, stage, recipe)) {
    text += fmt::format("warning: {}\n", warning);
  }
  const MemoryPlan memory = plan_memory(config, stage, recipe, backend);
  if (memory.frozen_weights > 0) {
    text += fmt::format("frozen: {} weights\n", memory.frozen_weights);
  }
  text += fmt::format(
      "memory {:.1f} MiB: parameters and optimizer {:.1f}, activations {:.1f}, operands {:.1f}, "
      "buffers {:.1f}, caches {:.1f}\n",
      mib(memory.total()), mib(memory.parameters), mib(memory.activations), mib(memory.operands),
      mib(memory.buffers), mib(memory.caches));
  text += describe_checkpoint(memory, backend);
  const StageTime time = times.of(stage, recipe);
  add_steps(run, config, stage, time, of.steps, plan_checkpoint(memory.checkpoint),
            backend.is_on_host());
  text += fmt::format("time about {:.3g} s a step, from timed operations: {}\n", time.step.total(),
                      describe(time.step));
  if (time.with_statistics > 0) {
    text += fmt::format("  {:.3g} s a step that logs statistics\n", time.with_statistics);
  }
  return text;
}

/// Returns the parts of a run that are not estimated, as the end of a line.
std::string not_in_estimate(const RunConfig& config) {
  for (const StageConfig& stage : config.stages) {
    if (!stage.eval) continue;
    const EvalConfig& eval = *stage.eval;
    if (eval.exact_match > 0 || eval.pass_at_k || eval.rollout || !eval.multiple_choice.empty()) {
      return ", without the answers that evaluations generate or choose";
    }
  }
  return "";
}

}  // namespace

std::string describe_plan(const RunConfig& config, Backend& backend, const ReportPhase& phase) {
  std::string text = fmt::format("run {} on {} ({}), configuration {}\n", config.name,
                                 backend.name(), backend.device(), config.hash);
  text += fmt::format("parameters {}\n", declaration_of(config.model).weights());
  RunTime time;
  StageTimes times(config, backend, phase);
  std::map<std::string, std::string> described;
  for (const StageConfig& stage : config.stages) {
    const std::vector<StageRecipe> recipes = recipes_of(config, stage);
    const Recipe first = load_recipe(recipes.front().name, config.recorded);
    text += fmt::format("\nstage {}: {} steps of {} x {} tokens, recipe {} ({})\n", stage.name,
                        stage.steps, stage.batch_sequences, stage.sequence_length, first.name,
                        first.hash);
    text += fmt::format("learning rate: {}\n", describe(stage.learning_rate, stage.steps));
    for (const StageRecipe& recipe : recipes) {
      text += describe_recipe(config, stage, recipe, backend, times, time, described);
    }
  }
  time.start = plan_start(config, backend);
  return text +
         fmt::format("\ntime of the run about {}{}\n", describe(time), not_in_estimate(config));
}

}  // namespace fp8lab
