#include "src/diagnosis/attribution.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "emulation/reference/truth_backend.hpp"
#include "src/diagnosis/estimator_remark.hpp"
#include "src/diagnosis/known_histories.hpp"
#include "src/error_sources/partial_quantization.hpp"
#include "src/train/memory_plan.hpp"
#include "src/train/training_step.hpp"

namespace fp8lab {
namespace {

/// Every gradient, parameter after parameter.
std::vector<double> gradients_of(Backend& backend, const Parameters& parameters) {
  std::vector<double> all;
  for (const Parameter& parameter : parameters.all()) {
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
  GradientError(Backend& backend, const CheckpointedRun& run, const StepBatch& step,
                const Recipe& recipe, int threads)
      : backend_(backend),
        run_(run),
        step_(step),
        recipe_(recipe),
        declaration_(declaration_of(run.config.model)) {
    const auto truth = reference::make_truth_backend(threads);
    exact_ = gradient(*truth, recipe, exact_storage(run.config.optimizer), false);
  }

  /// Of the step with what `switches` keeps.
  double of(const Switches& switches) {
    int replaced = 0;
    const Recipe recipe = with_switches(recipe_, run_.config.model, switches, replaced);
    if (switches.storage && !switches.scale_rounding) replaced_ = replaced;
    PartialQuantization partial(backend_, switches);
    const std::size_t mark = backend_.memory_mark();
    const OptimizerConfig& optimizer = run_.config.optimizer;
    const double error = relative_distance(
        gradient(partial, recipe, switches.storage ? optimizer : exact_storage(optimizer), true),
        exact_);
    backend_.release_to(mark);
    return error;
  }

  const Declaration& declaration() const { return declaration_; }
  /// GEMMs that lose their accumulator with the rounding of scales.
  int replaced() const { return replaced_; }

 private:
  std::vector<double> gradient(Backend& backend, const Recipe& recipe,
                               const OptimizerConfig& optimizer, bool has_states) {
    Parameters parameters(backend, run_.config.model, optimizer, recipe.activation_dtype);
    load_parameters(*open_checkpoint_tensors(run_.checkpoint, run_.config.model),
                    run_.checkpoint->path(), parameters);
    const StageConfig& stage = run_.stage();
    Transformer transformer(
        backend, parameters, run_.config.model, recipe,
        BatchShape{stage.micro_batch_sequences, stage.sequence_length, run_.config.attention});
    if (has_states) {
      if (recipe_.hash == run_.recipe.hash) {
        load_quantizer_states(*run_.checkpoint, backend, transformer.linears());
      }
      continue_histories(backend, run_.histories, transformer.linears());
    }
    const StepBlock block(backend);
    StepContext context = step_.context;
    context.log_statistics = false;
    const TrainingStep training{backend, parameters, transformer, block};
    StressedStep stressed = stress_next_step(backend, parameters, run_);
    training.accumulate(context, {&step_.batch, 1}, 0.0);
    stressed.end();
    return gradients_of(backend, parameters);
  }

  Backend& backend_;
  const CheckpointedRun& run_;
  const StepBatch& step_;
  Recipe recipe_;
  Declaration declaration_;
  std::vector<double> exact_;
  int replaced_ = 0;
};

/// The groups of these names, in their own order; all where there are no names.
std::vector<ErrorSourceGroup> chosen(std::vector<ErrorSourceGroup> all,
                                     const std::vector<std::string>& names) {
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const ErrorSourceGroup& group : all) known.push_back(group.name);
  const auto holds = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const std::string& name : names) {
    if (holds(known, name)) continue;
    throw Error(fmt::format("group '{}': accepted: {}", name, fmt::join(known, ", ")));
  }
  std::erase_if(all, [&](const ErrorSourceGroup& group) { return !holds(names, group.name); });
  return all;
}

}  // namespace

std::optional<double> Attribution::share_alone(const Part& part) const {
  if (!part.alone) return std::nullopt;
  return (*part.alone * *part.alone - nothing * nothing) / (whole * whole);
}

double Attribution::share_without(const Part& part) const {
  return 1.0 - part.without * part.without / (whole * whole);
}

Attribution attribute_gradient(Backend& backend, const CheckpointedRun& run, const StepBatch& step,
                               const Recipe& recipe, const std::vector<std::string>& groups,
                               int threads, const GradientProgress& progress) {
  if (!backend.is_on_host()) {
    throw Error(
        fmt::format("backend '{}' keeps operands where they cannot be replaced; accepted: "
                    "--backend cpu",
                    backend.name()));
  }
  const std::vector<ErrorSourceGroup> wanted =
      chosen(error_sources(declaration_of(run.config.model).linears()), groups);
  StageConfig stage = run.stage();
  stage.eval.reset();
  plan_memory(run.config, stage, recipe, backend);  // refuses what cannot run
  Attribution result;
  const Recipe scaled =
      with_known_histories(recipe, run.config.model, run.histories, result.remarks);
  if (const auto remark = estimator_remark(recipe)) result.remarks.push_back(*remark);
  std::size_t total = 3, done = 0;  // in double precision, with all sources, with none
  for (const ErrorSourceGroup& group : wanted) {
    total += group.sources.size() * (group.is_of_scales ? 1 : 2);
  }
  progress("the gradient in double precision", done++, total);
  GradientError error(backend, run, step, scaled, threads);
  const std::vector<LinearDeclaration>& linears = error.declaration().linears();
  const Switches on = all_switches(linears.size(), true), off = all_switches(linears.size(), false);
  progress("the gradient under recipe " + recipe.name, done++, total);
  result.whole = error.of(on);
  progress("the gradient with nothing rounded", done++, total);
  result.nothing = error.of(off);
  for (const ErrorSourceGroup& group : wanted) {
    PartGroup parts{group.name, {}};
    for (const ErrorSource& one : group.sources) {
      Part part{one.name, std::nullopt, 0};
      if (!group.is_of_scales) {
        progress("the gradient with " + one.name + " alone", done++, total);
        Switches alone = off;
        one.set(alone, true);
        part.alone = error.of(alone);
      }
      progress("the gradient without " + one.name, done++, total);
      Switches without = on;
      one.set(without, false);
      part.without = error.of(without);
      parts.parts.push_back(std::move(part));
    }
    result.groups.push_back(std::move(parts));
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
