#include "src/diagnosis/attribution.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "emulation/ops/pointwise/square_distance.hpp"
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

/// Returns the sum of `chunks` sums in their order.
double sum_of(const std::vector<double>& chunks) {
  return std::accumulate(chunks.begin(), chunks.end(), 0.0);
}

/// Returns the sum of squares by the order of ops::SquareDistance.
double square_sum(const std::vector<double>& values) {
  const auto size = static_cast<std::int64_t>(values.size());
  std::vector<double> sums(static_cast<std::size_t>(ops::SquareDistance::chunks(size)));
#pragma omp parallel for schedule(static)
  for (std::size_t chunk = 0; chunk < sums.size(); ++chunk) {
    const std::int64_t first = static_cast<std::int64_t>(chunk) * numerics::kSumChunk;
    sums[chunk] = numerics::chunk_sum<double>(
        first, std::min(size, first + numerics::kSumChunk), [&](std::int64_t i) {
          const double value = values[static_cast<std::size_t>(i)];
          return value * value;
        });
  }
  return sum_of(sums);
}

/// The pass of `step` on `backend` from the checkpoint's weights.
class Pass {
 public:
  Pass(const CheckpointedRun& run, const StepBatch& step)
      : run_(run), step_(step), objective_(make_objective(run.stage().objective)) {}

  /// Computes the gradients of `parameters`, whose memory `backend` uses, under `recipe`. `states`,
  /// if given, is the recipe without changes, whose quantizers continue the checkpoint's states.
  void take(Backend& backend, Parameters& parameters, const Recipe& recipe,
            const Recipe* states) const {
    const StageConfig& stage = run_.stage();
    Transformer transformer(backend, parameters, run_.config.model, recipe,
                            BatchShape{stage.micro_batch_sequences,
                                       stage.sequence_length,
                                       run_.config.attention,
                                       {},
                                       objective_->own_columns()});
    if (states != nullptr) {
      if (states->hash == run_.recipe.hash) {
        load_quantizer_states(*run_.checkpoint, backend, transformer.operand_sets());
      }
      continue_histories(backend, run_.histories, transformer.operand_sets());
    }
    const StepBlock block(backend);
    StepContext context = step_.context;
    context.log_statistics = false;
    const TrainingStep training{backend, parameters, transformer, block, *objective_};
    StressedStep stressed = stress_next_step(backend, parameters, run_);
    training.accumulate(context, {&step_.batch, 1}, 0.0);
    stressed.end();
  }

 private:
  const CheckpointedRun& run_;
  const StepBatch& step_;
  std::unique_ptr<Objective> objective_;
};

/// The checkpoint's weights in a storage, and memory for their gradients.
class Weights {
 public:
  Weights(Backend& backend, const CheckpointedRun& run, const OptimizerConfig& optimizer,
          DType working)
      : parameters_(backend, run.config.model, optimizer, working) {
    load_parameters(*open_checkpoint_tensors(run.checkpoint, run.config.model),
                    run.checkpoint->path(), parameters_);
  }

  Parameters& parameters() { return parameters_; }
  /// The trained parameters; frozen ones have no gradient.
  std::vector<const Parameter*> trained() const {
    std::vector<const Parameter*> trained;
    for (const Parameter& parameter : parameters_.all()) {
      if (parameter.is_trained()) trained.push_back(&parameter);
    }
    return trained;
  }

 private:
  Parameters parameters_;
};

/// Measures gradients on a backend against the one in double precision.
class GradientErrors {
 public:
  /// Computes the gradient in double precision, on the CPU, and moves it to `backend`. Recipes do
  /// not change it.
  GradientErrors(Backend& backend, const CheckpointedRun& run, const StepBatch& step, int threads)
      : backend_(backend), run_(run), pass_(run, step) {
    const auto truth = reference::make_truth_backend(threads);
    Weights weights(*truth, run, exact_storage(run.config.optimizer), run.recipe.activation_dtype);
    pass_.take(*truth, weights.parameters(), run.recipe, nullptr);
    std::int64_t chunks = 0;
    for (const Parameter* const parameter : weights.trained()) {
      const TensorView& gradient = parameter->gradient();
      std::vector<double> values(static_cast<std::size_t>(gradient.size()));
      truth->download(values.data(), gradient);
      squares_ += square_sum(values);
      exact_.push_back(backend.allocate(DType::f64, gradient.rows, gradient.cols));
      backend.upload(exact_.back(), values.data());
      chunks += ops::SquareDistance::chunks(gradient.size());
    }
    sums_ = backend.allocate(DType::f64, 1, chunks);
    mark_ = backend.memory_mark();
  }

  /// Returns the error of the gradient under `switched`, which is `recipe` with `switches`, and to
  /// `found` the errors of elements that occurred (PartialQuantization::found); `records_all` as
  /// there.
  double of(const Recipe& recipe, const Recipe& switched, const Switches& switches,
            bool records_all, std::vector<PerSlot<FoundErrors>>& found) {
    Weights& weights = weights_for(switches.storage, switched.activation_dtype);
    PartialQuantization partial(backend_, switches, records_all);
    const std::size_t mark = backend_.memory_mark();
    pass_.take(partial, weights.parameters(), switched, &recipe);
    const double error = distance(weights.trained());
    backend_.release_to(mark);
    found = partial.found();
    return error;
  }

 private:
  Weights& weights_for(bool storage, DType working) {
    if (weights_ && storage == has_storage_ && working == working_) return *weights_;
    weights_.reset();
    backend_.release_to(mark_);
    const OptimizerConfig& optimizer = run_.config.optimizer;
    weights_.emplace(backend_, run_, storage ? optimizer : exact_storage(optimizer), working);
    has_storage_ = storage;
    working_ = working;
    return *weights_;
  }

  double distance(const std::vector<const Parameter*>& trained) {
    FP8LAB_ASSERT(trained.size() == exact_.size());
    std::int64_t first = 0;
    for (std::size_t i = 0; i < trained.size(); ++i) {
      const std::int64_t chunks = ops::SquareDistance::chunks(exact_[i].size());
      backend_.run(
          ops::SquareDistance{trained[i]->gradient(), exact_[i], sums_.columns(first, chunks)});
      first += chunks;
    }
    std::vector<double> sums(static_cast<std::size_t>(sums_.cols));
    backend_.download(sums.data(), sums_);
    return std::sqrt(sum_of(sums) / squares_);
  }

  Backend& backend_;
  const CheckpointedRun& run_;
  Pass pass_;
  std::vector<TensorView> exact_;  ///< of each trained parameter, f64
  double squares_ = 0;             ///< sum of the squares of all
  TensorView sums_;                ///< of the distance
  std::size_t mark_ = 0;
  std::optional<Weights> weights_;
  bool has_storage_ = false;
  DType working_ = DType::f32;
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

/// Returns whether the gradient `wanted` is the one of `measured`, in which `found` occurred: they
/// differ at most in whether errors are kept that no element has.
bool is_same_gradient(const GradientKey& wanted, const GradientKey& measured,
                      const std::vector<PerSlot<FoundErrors>>& found) {
  GradientKey alike = wanted;
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (const Slot slot : kSlots) {
      ElementErrors& kept = alike.switches.layers[i].operands[slot];
      const ElementErrors& others = measured.switches.layers[i].operands[slot];
      const FoundErrors& occurred = found[i][slot];
      if (!occurred[ElementErrorKind::kCast]) kept.cast = others.cast;
      if (!occurred[ElementErrorKind::kUnderflow]) kept.underflow = others.underflow;
      if (!occurred[ElementErrorKind::kSaturation]) kept.saturation = others.saturation;
    }
  }
  return alike == measured;
}

/// The gradients of a part, as indices into the gradients of its recipe.
struct WantedPart {
  std::optional<std::size_t> alone;
  std::size_t without = 0;
};

/// A distinct gradient to compute, and its error.
struct WantedGradient {
  std::string name;
  GradientKey key;
  int replaced = 0;  ///< GEMMs whose accumulator accepts no FP32 scales
  std::optional<double> error{};
  std::vector<PerSlot<FoundErrors>> found{};  ///< empty: another gradient's error was taken
};

/// The gradients that the attribution under one recipe needs.
class WantedGradients {
 public:
  WantedGradients(const Recipe& recipe, const ModelConfig& model,
                  const std::vector<ErrorSourceGroup>& groups)
      : recipe_(recipe), model_(model), groups_(groups) {
    const std::size_t layers = declaration_of(model).linears().size();
    const Switches on = all_switches(layers, true), off = all_switches(layers, false);
    whole_ = add("under recipe " + recipe.name, on);
    nothing_ = add("with nothing rounded", off);
    for (const ErrorSourceGroup& group : groups) {
      for (const ErrorSource& one : group.sources) {
        WantedPart part;
        if (!group.is_of_scales) {
          Switches alone = off;
          one.set(alone, true);
          part.alone = add("with " + one.name + " alone", alone);
        }
        Switches without = on;
        one.set(without, false);
        part.without = add("without " + one.name, without);
        parts_.push_back(part);
      }
    }
  }

  const Recipe& recipe() const { return recipe_; }
  std::vector<WantedGradient>& all() { return all_; }
  const std::vector<WantedGradient>& all() const { return all_; }

  /// Writes the errors of all gradients to `result`.
  void describe(Attribution& result) const {
    const auto error = [&](std::size_t i) { return all_[i].error.value(); };
    result.whole = error(whole_);
    result.nothing = error(nothing_);
    auto part = parts_.begin();
    for (const ErrorSourceGroup& group : groups_) {
      PartGroup measured{group.name, {}};
      for (const ErrorSource& one : group.sources) {
        Part found{one.name, std::nullopt, error(part->without)};
        if (part->alone) found.alone = error(*part->alone);
        measured.parts.push_back(std::move(found));
        ++part;
      }
      result.groups.push_back(std::move(measured));
    }
    int replaced = 0;
    for (const WantedGradient& one : all_) {
      const Switches& switches = one.key.switches;
      if (switches.storage && !switches.scale_rounding) replaced = one.replaced;
    }
    if (replaced == 0) return;
    result.remarks.push_back(fmt::format(
        "without the rounding of scales {} GEMMs have exact sums: their accumulator takes no FP32 "
        "scales",
        replaced));
  }

 private:
  /// Returns the index of the gradient with these switches; adds it if it is new.
  std::size_t add(std::string name, const Switches& switches) {
    int replaced = 0;
    GradientKey key{with_switches(recipe_, model_, switches, replaced), switches};
    const auto same = std::find_if(all_.begin(), all_.end(),
                                   [&](const WantedGradient& one) { return one.key == key; });
    if (same != all_.end()) return static_cast<std::size_t>(same - all_.begin());
    all_.push_back({std::move(name), std::move(key), replaced});
    return all_.size() - 1;
  }

  Recipe recipe_;
  const ModelConfig& model_;
  const std::vector<ErrorSourceGroup>& groups_;
  std::size_t whole_ = 0, nothing_ = 0;
  std::vector<WantedPart> parts_;
  std::vector<WantedGradient> all_;
};

/// Measures `one`, or takes the error of a gradient of the same recipe that is the same.
void measure(WantedGradient& one, const WantedGradients& of_recipe, GradientErrors& errors) {
  const std::vector<WantedGradient>& all = of_recipe.all();
  for (const WantedGradient& other : all) {
    if (other.found.empty() || !is_same_gradient(one.key, other.key, other.found)) continue;
    one.error = other.error;
    return;
  }
  // What occurs in operands that keep every error is measured if another gradient may be the same.
  const std::vector<PerSlot<FoundErrors>> nowhere(one.key.switches.layers.size());
  const bool records_all = std::any_of(all.begin(), all.end(), [&](const WantedGradient& other) {
    return !other.error && &other != &one && is_same_gradient(other.key, one.key, nowhere);
  });
  std::vector<PerSlot<FoundErrors>> found;
  one.error = errors.of(of_recipe.recipe(), one.key.recipe, one.key.switches, records_all, found);
  if (records_all) one.found = std::move(found);
}

/// Estimates the seconds of the gradient in double precision and of all `wanted`; none if the work
/// is too small to time.
std::optional<double> seconds_of(const std::vector<WantedGradients>& wanted, Backend& backend,
                                 const CheckpointedRun& run, std::size_t total, int threads) {
  if (takes_no_time(run, wanted.front().recipe(), backend, 3 * total)) return std::nullopt;
  const Declaration declaration = declaration_of(run.config.model);
  const double each = kEstimateSeconds / static_cast<double>(1 + 2 * wanted.size());
  const auto truth = reference::make_truth_backend(threads);
  const PassTime in_double = time_pass(run, run.recipe, *truth, each);
  double seconds = in_double.gemms + in_double.rest;
  for (const WantedGradients& of_recipe : wanted) {
    const Recipe& recipe = of_recipe.recipe();
    const PassTime emulated = time_pass(run, recipe, backend, each);
    const PassTime exact = time_pass(run, recipe, backend, each, {"all"});
    for (const WantedGradient& one : of_recipe.all()) {
      seconds += gradient_seconds(one.key.switches, declaration.linears(), emulated, exact);
    }
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

std::vector<Attribution> attribute_gradients(Backend& backend, const CheckpointedRun& run,
                                             const StepBatch& step,
                                             const std::vector<Recipe>& recipes,
                                             const AttributionChoice& choice, int threads,
                                             const GradientProgress& progress,
                                             const GradientEstimate& estimate) {
  const std::vector<ErrorSourceGroup> groups = chosen(run.config.model, choice);
  StageConfig stage = run.stage();
  stage.eval.reset();
  std::vector<Attribution> results;
  std::vector<WantedGradients> wanted;
  std::size_t total = 1;
  for (const Recipe& recipe : recipes) {
    plan_memory(run.config, stage, recipe, backend);  // throws if the recipe cannot run
    Attribution& result = results.emplace_back();
    const Recipe scaled =
        with_known_histories(recipe, run.config.model, run.histories, result.remarks);
    if (const auto remark = estimator_remark(recipe)) result.remarks.push_back(*remark);
    const WantedGradients& own = wanted.emplace_back(scaled, run.config.model, groups);
    for (const WantedGradient& one : own.all()) {  // throws without such arithmetic
      RunConfig config = run.config;
      if (!one.key.switches.storage) config.optimizer = exact_storage(config.optimizer);
      plan_memory(config, stage, one.key.recipe, backend);
    }
    total += own.all().size();
  }
  if (estimate) {
    if (const auto seconds = seconds_of(wanted, backend, run, total, threads)) {
      estimate(total, *seconds);
    }
  }
  progress("the gradient in double precision", 0, total);
  const std::size_t mark = backend.memory_mark();
  GradientErrors errors(backend, run, step, threads);
  std::size_t done = 1;
  // Weights are loaded once in each storage.
  for (const bool storage : {true, false}) {
    for (WantedGradients& of_recipe : wanted) {
      for (WantedGradient& one : of_recipe.all()) {
        if (one.key.switches.storage != storage) continue;
        const std::string under =
            recipes.size() > 1 && one.name.find("recipe ") == std::string::npos
                ? " of recipe " + of_recipe.recipe().name
                : "";
        progress("the gradient " + one.name + under, done++, total);
        measure(one, of_recipe, errors);
      }
    }
  }
  backend.release_to(mark);
  for (std::size_t i = 0; i < results.size(); ++i) wanted[i].describe(results[i]);
  return results;
}

}  // namespace fp8lab
