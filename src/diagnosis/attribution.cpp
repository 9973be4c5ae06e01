#include "src/diagnosis/attribution.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "emulation/reference/truth_backend.hpp"
#include "src/diagnosis/diagnosis_time.hpp"
#include "src/diagnosis/estimator_remark.hpp"
#include "src/diagnosis/known_histories.hpp"
#include "src/diagnosis/layer_choice.hpp"
#include "src/error_sources/partial_quantization.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {
namespace {

/// Returns the gradients of all parameters, concatenated; frozen ones have none.
std::vector<double> gradients_of(Backend& backend, const Parameters& parameters) {
  std::vector<double> all;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_trained()) continue;
    const TensorView& view = parameter.gradient();
    const auto count = static_cast<std::size_t>(view.size());
    if (view.dtype == DType::f64) {
      all.resize(all.size() + count);
      backend.download(all.data() + all.size() - count, view);
      continue;
    }
    std::vector<float> values(count);
    download_floats(backend, view, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

double relative_distance(const std::vector<double>& value, const std::vector<double>& exact) {
  double errors = 0, squares = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    errors += (value[i] - exact[i]) * (value[i] - exact[i]);
    squares += exact[i] * exact[i];
  }
  return std::sqrt(errors / squares);
}

class GradientError {
 public:
  GradientError(Backend& backend, Backend& host, const CheckpointedRun& run, const StepBatch& step,
                const Recipe& recipe, int threads)
      : backend_(backend), host_(host), run_(run), step_(step), recipe_(recipe) {
    const auto truth = reference::make_truth_backend(threads);
    exact_ = gradient(*truth, recipe, exact_storage(run.config.optimizer), false);
  }

  /// Returns the error of the gradient with only the sources that `switches` keeps.
  double of(const Switches& switches) {
    int replaced = 0;
    const Recipe recipe = with_switches(recipe_, run_.config.model, switches, replaced);
    if (switches.storage && !switches.scale_rounding) replaced_ = replaced;
    PartialQuantization partial(backend_, host_, switches);
    const std::size_t mark = backend_.memory_mark();
    const OptimizerConfig& optimizer = run_.config.optimizer;
    const double error = relative_distance(
        gradient(partial, recipe, switches.storage ? optimizer : exact_storage(optimizer), true),
        exact_);
    backend_.release_to(mark);
    return error;
  }

  /// Returns the number of GEMMs that sum exactly without scale rounding, because their accumulator
  /// accepts no FP32 scales.
  int replaced() const { return replaced_; }

 private:
  std::vector<double> gradient(Backend& backend, const Recipe& recipe,
                               const OptimizerConfig& optimizer, bool has_states) {
    Parameters parameters(backend, run_.config.model, optimizer, recipe.activation_dtype);
    load_parameters(*open_checkpoint_tensors(run_.checkpoint, run_.config.model),
                    run_.checkpoint->path(), parameters);
    const StageConfig& stage = run_.stage();
    const std::unique_ptr<Objective> objective = make_objective(stage.objective);
    Transformer transformer(backend, parameters, run_.config.model, recipe,
                            BatchShape{stage.micro_batch_sequences,
                                       stage.sequence_length,
                                       run_.config.attention,
                                       {},
                                       objective->own_columns()});
    if (has_states) {
      if (recipe_.hash == run_.recipe.hash) {
        load_quantizer_states(*run_.checkpoint, backend, transformer.operand_sets());
      }
      continue_histories(backend, run_.histories, transformer.operand_sets());
    }
    const StepBlock block(backend);
    StepContext context = step_.context;
    context.log_statistics = false;
    const TrainingStep training{backend, parameters, transformer, block, *objective};
    StressedStep stressed = stress_next_step(backend, parameters, run_);
    training.accumulate(context, {&step_.batch, 1}, 0.0);
    stressed.end();
    return gradients_of(backend, parameters);
  }

  Backend& backend_;
  Backend& host_;
  const CheckpointedRun& run_;
  const StepBatch& step_;
  Recipe recipe_;
  std::vector<double> exact_;
  int replaced_ = 0;
};

/// Returns the chosen groups, in the order of error_sources().
std::vector<ErrorSourceGroup> chosen(const ModelConfig& model, const AttributionChoice& choice) {
  constexpr const char* kLayer = "layer";
  const Declaration declaration = declaration_of(model);
  const std::vector<LinearDeclaration>& linears = declaration.linears();
  std::vector<ErrorSourceGroup> all = error_sources(linears);
  std::vector<std::string> known;
  for (const ErrorSourceGroup& group : all) known.push_back(group.name);
  const auto holds = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const std::string& name : choice.groups) {
    if (holds(known, name)) continue;
    throw Error(fmt::format("group '{}': accepted: {}", name, fmt::join(known, ", ")));
  }
  if (!choice.layers.empty()) {
    std::vector<ErrorSource>& sources = all.back().sources;
    std::vector<ErrorSource> some;
    for (const std::size_t i : chosen_layers(model, choice.layers)) some.push_back(sources[i]);
    sources = std::move(some);
  }
  std::erase_if(all, [&](const ErrorSourceGroup& group) {
    if (group.name == kLayer && !choice.layers.empty()) return false;
    // Without `groups`: only the layers if some are chosen, else every group except them.
    if (choice.groups.empty()) return group.name == kLayer || !choice.layers.empty();
    return !holds(choice.groups, group.name);
  });
  return all;
}

/// Determines a gradient: the recipe of each layer, and the element errors of its operands.
struct GradientKey {
  Recipe recipe;
  Switches switches;

  bool operator==(const GradientKey& other) const {
    if (switches.storage != other.switches.storage) return false;
    for (std::size_t i = 0; i < switches.layers.size(); ++i) {
      if (recipe.overrides[i].recipe != other.recipe.overrides[i].recipe) return false;
      for (const Slot slot : kSlots) {
        if (switches.layers[i].operands[slot] != other.switches.layers[i].operands[slot]) {
          return false;
        }
      }
    }
    return true;
  }
};

/// The distinct gradients to compute.
class WantedGradients {
 public:
  WantedGradients(const Recipe& recipe, const ModelConfig& model)
      : recipe_(recipe), model_(model) {}

  /// Returns the index of the gradient with these switches; adds it if it is new.
  std::size_t add(std::string name, const Switches& switches) {
    int replaced = 0;
    GradientKey key{with_switches(recipe_, model_, switches, replaced), switches};
    const auto same =
        std::find_if(all_.begin(), all_.end(), [&](const Wanted& one) { return one.key == key; });
    if (same != all_.end()) return static_cast<std::size_t>(same - all_.begin());
    all_.push_back({std::move(name), std::move(key)});
    return all_.size() - 1;
  }
  std::size_t size() const { return all_.size(); }
  const std::string& name(std::size_t i) const { return all_[i].name; }
  const Recipe& recipe(std::size_t i) const { return all_[i].key.recipe; }
  const Switches& switches(std::size_t i) const { return all_[i].key.switches; }

 private:
  struct Wanted {
    std::string name;
    GradientKey key;
  };
  const Recipe& recipe_;
  const ModelConfig& model_;
  std::vector<Wanted> all_;
};

/// The gradients of a part, as indices into WantedGradients.
struct WantedPart {
  std::optional<std::size_t> alone;
  std::size_t without = 0;
};

/// Estimates the seconds of the gradient in double precision and of all `wanted`; none if the work
/// is too small to time. Exact products are timed on `host`: of a device, which computes them
/// faster, the result is an upper bound.
std::optional<double> seconds_of(const WantedGradients& wanted, Backend& backend, Backend& host,
                                 const CheckpointedRun& run, const Recipe& recipe, int threads) {
  if (takes_no_time(run, recipe, backend, 3 * (wanted.size() + 1))) return std::nullopt;
  const Declaration declaration = declaration_of(run.config.model);
  constexpr double kEach = kEstimateSeconds / 3;
  const PassTime emulated = time_pass(run, recipe, backend, kEach);
  const PassTime exact = time_pass(run, recipe, host, kEach, {"all"});
  const auto truth = reference::make_truth_backend(threads);
  const PassTime in_double = time_pass(run, recipe, *truth, kEach);
  double seconds = in_double.gemms + in_double.rest;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    seconds += gradient_seconds(wanted.switches(i), declaration.linears(), emulated, exact);
  }
  return seconds;
}

}  // namespace

std::optional<double> Attribution::share_alone(const Part& part) const {
  if (!part.alone) return std::nullopt;
  return (*part.alone * *part.alone - nothing * nothing) / (whole * whole);
}

double Attribution::share_without(const Part& part) const {
  return 1.0 - part.without * part.without / (whole * whole);
}

Attribution attribute_gradient(Backend& backend, Backend& host, const CheckpointedRun& run,
                               const StepBatch& step, const Recipe& recipe,
                               const AttributionChoice& choice, int threads,
                               const GradientProgress& progress, const GradientEstimate& estimate) {
  const std::vector<ErrorSourceGroup> groups = chosen(run.config.model, choice);
  StageConfig stage = run.stage();
  stage.eval.reset();
  plan_memory(run.config, stage, recipe, backend);  // throws if the recipe cannot run
  Attribution result;
  const Recipe scaled =
      with_known_histories(recipe, run.config.model, run.histories, result.remarks);
  if (const auto remark = estimator_remark(recipe)) result.remarks.push_back(*remark);

  const std::size_t layers = declaration_of(run.config.model).linears().size();
  const Switches on = all_switches(layers, true), off = all_switches(layers, false);
  WantedGradients wanted(scaled, run.config.model);
  const std::size_t whole = wanted.add("under recipe " + recipe.name, on);
  const std::size_t nothing = wanted.add("with nothing rounded", off);
  std::vector<WantedPart> parts;
  for (const ErrorSourceGroup& group : groups) {
    for (const ErrorSource& one : group.sources) {
      WantedPart part;
      if (!group.is_of_scales) {
        Switches alone = off;
        one.set(alone, true);
        part.alone = wanted.add("with " + one.name + " alone", alone);
      }
      Switches without = on;
      one.set(without, false);
      part.without = wanted.add("without " + one.name, without);
      parts.push_back(part);
    }
  }
  for (std::size_t i = 0; i < wanted.size(); ++i) {  // throws if the backend has no such arithmetic
    RunConfig config = run.config;
    if (!wanted.switches(i).storage) config.optimizer = exact_storage(config.optimizer);
    plan_memory(config, stage, wanted.recipe(i), backend);
  }
  const std::size_t total = 1 + wanted.size();
  if (estimate) {
    if (const auto seconds = seconds_of(wanted, backend, host, run, scaled, threads)) {
      estimate(total, *seconds);
    }
  }
  progress("the gradient in double precision", 0, total);
  GradientError error(backend, host, run, step, scaled, threads);
  std::vector<double> errors;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    progress("the gradient " + wanted.name(i), i + 1, total);
    errors.push_back(error.of(wanted.switches(i)));
  }
  result.whole = errors[whole];
  result.nothing = errors[nothing];
  auto part = parts.begin();
  for (const ErrorSourceGroup& group : groups) {
    PartGroup measured{group.name, {}};
    for (const ErrorSource& one : group.sources) {
      Part found{one.name, std::nullopt, errors[part->without]};
      if (part->alone) found.alone = errors[*part->alone];
      measured.parts.push_back(std::move(found));
      ++part;
    }
    result.groups.push_back(std::move(measured));
  }
  if (error.replaced() > 0) {
    result.remarks.push_back(fmt::format(
        "without the rounding of scales {} GEMMs have exact sums: their accumulator takes no FP32 "
        "scales",
        error.replaced()));
  }
  return result;
}

}  // namespace fp8lab
