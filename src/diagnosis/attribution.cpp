#include "src/diagnosis/attribution.hpp"

#include <fmt/core.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "emulation/reference/truth_backend.hpp"
#include "emulation/spec/gemm_rules.hpp"
#include "src/diagnosis/known_histories.hpp"
#include "src/train/memory_plan.hpp"
#include "src/train/training_step.hpp"

namespace fp8lab {
namespace {

/// `spec` with exact sums, in chunks as long as scales last.
GemmSpec exact_sums(GemmSpec spec, const QuantSpec& a, const QuantSpec& b) {
  const std::int64_t width = std::gcd(a.scale_tile().cols, b.scale_tile().cols);
  spec.accumulator = Accumulator::ideal_exact;
  spec.schedule = width == 0 ? Schedule::fast : Schedule::promote;
  if (width != 0) spec.promote_interval = static_cast<int>(width);
  spec.scale_order = ScaleOrder::automatic;
  spec.split_k = 1;
  return spec;
}

bool is_refused(const LinearRecipe& recipe, GemmRole role) {
  return refuse_gemm(recipe.gemm(role), recipe.a(role), recipe.b(role), slot_name(a_slot(role)),
                     slot_name(b_slot(role)))
      .has_value();
}

void round_no_scales(QuantSpec& spec) {
  if (spec.scale_source != ScaleSource::current || spec.has_codebooks()) return;
  spec.scale.format = numerics::ScaleFormat::fp32;
  spec.scale.rounding = numerics::ScaleRounding::nearest;
  spec.scale.four_over_six = numerics::FourOverSix::none;
}

LinearRecipe switched(LinearRecipe recipe, const Switches& switches, const Switches::Layer& layer,
                      int& replaced) {
  for (QuantSpec& spec : recipe.slots) {
    if (!switches.amax_history && spec.scale_source == ScaleSource::delayed) {
      spec.scale_source = ScaleSource::current;
    }
    if (!switches.scale_rounding) round_no_scales(spec);
  }
  for (const GemmRole role : kGemmRoles) {
    GemmSpec& gemm = recipe.gemm(role);
    const bool takes_no_scales = layer.accumulators[role] && is_refused(recipe, role);
    replaced += takes_no_scales ? 1 : 0;
    if (takes_no_scales || !layer.accumulators[role]) {
      gemm = exact_sums(gemm, recipe.a(role), recipe.b(role));
    }
    if (!switches.storage) gemm.output = DType::f32;
  }
  return recipe;
}

Switches all_switches(std::size_t layers, bool on) {
  Switches switches;
  Switches::Layer layer;
  if (!on) {
    for (ElementErrors& errors : layer.operands) errors = {false, false, false};
    layer.accumulators = {false, false, false};
  }
  switches.layers.assign(layers, layer);
  switches.storage = on;
  return switches;
}

/// The group of what scales are made of.
constexpr const char* kScales = "scale";

/// What a part switches.
struct Switch {
  std::string name;
  std::function<void(Switches&, bool)> set;
};

void set_slot(Switches::Layer& layer, Slot slot, bool on) { layer.operands[slot] = {on, on, on}; }

void set_gemm(Switches::Layer& layer, GemmRole role, bool on) {
  set_slot(layer, a_slot(role), on);
  set_slot(layer, b_slot(role), on);
  layer.accumulators[role] = on;
}

template <class Set>
std::function<void(Switches&, bool)> in_every_layer(Set set) {
  return [set](Switches& switches, bool on) {
    for (Switches::Layer& layer : switches.layers) set(layer, on);
  };
}

std::function<void(Switches&, bool)> in_every_operand(bool ElementErrors::*kind) {
  return in_every_layer([kind](Switches::Layer& layer, bool on) {
    for (ElementErrors& errors : layer.operands) errors.*kind = on;
  });
}

struct SwitchGroup {
  std::string name;
  std::vector<Switch> switches;
};

std::vector<SwitchGroup> switch_groups(const std::vector<LinearDeclaration>& linears) {
  std::vector<SwitchGroup> groups(5);
  groups[0] = {"source",
               {{"element cast", in_every_operand(&ElementErrors::cast)},
                {"underflow", in_every_operand(&ElementErrors::underflow)},
                {"saturation", in_every_operand(&ElementErrors::saturation)},
                {"accumulator", in_every_layer([](Switches::Layer& layer, bool on) {
                   layer.accumulators = {on, on, on};
                 })},
                {"storage", [](Switches& switches, bool on) { switches.storage = on; }}}};
  groups[1] = {
      kScales,
      {{"scale rounding", [](Switches& switches, bool on) { switches.scale_rounding = on; }},
       {"amax history", [](Switches& switches, bool on) { switches.amax_history = on; }}}};
  groups[2].name = "slot";
  for (const Slot slot : kSlots) {
    groups[2].switches.push_back(
        {slot_name(slot),
         in_every_layer([slot](Switches::Layer& layer, bool on) { set_slot(layer, slot, on); })});
  }
  groups[3].name = "GEMM";
  for (const GemmRole role : kGemmRoles) {
    groups[3].switches.push_back(
        {gemm_role_name(role),
         in_every_layer([role](Switches::Layer& layer, bool on) { set_gemm(layer, role, on); })});
  }
  groups[4].name = "layer";
  for (std::size_t i = 0; i < linears.size(); ++i) {
    groups[4].switches.push_back({linears[i].name, [i](Switches& switches, bool on) {
                                    for (const GemmRole role : kGemmRoles) {
                                      set_gemm(switches.layers[i], role, on);
                                    }
                                  }});
  }
  return groups;
}

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
        threads_(threads),
        declaration_(declaration_of(run.config.model)) {
    const auto truth = reference::make_truth_backend(threads);
    exact_ = gradient(*truth, recipe, exact_types(), false);
  }

  /// Of the step with what `switches` keeps.
  double of(const Switches& switches) {
    int replaced = 0;
    const Recipe recipe = with_switches(recipe_, run_.config.model, switches, replaced);
    if (switches.storage && !switches.scale_rounding) replaced_ = replaced;
    PartialQuantization partial(backend_, kept_errors(switches, recipe), threads_);
    const std::size_t mark = backend_.memory_mark();
    const double error = relative_distance(
        gradient(partial, recipe, switches.storage ? run_.config.optimizer : exact_types(), true),
        exact_);
    backend_.release_to(mark);
    return error;
  }

  const Declaration& declaration() const { return declaration_; }
  /// GEMMs that lose their accumulator with the rounding of scales.
  int replaced() const { return replaced_; }

 private:
  /// An operand that only passes on what is stored has the errors of storage and none of its own.
  std::vector<PerSlot<ElementErrors>> kept_errors(const Switches& switches,
                                                  const Recipe& recipe) const {
    std::vector<PerSlot<ElementErrors>> kept;
    for (std::size_t i = 0; i < switches.layers.size(); ++i) {
      kept.push_back(switches.layers[i].operands);
      const LinearRecipe& layer = recipe.overrides[i].recipe;
      for (const Slot slot : kSlots) {
        if (!switches.storage && !layer.slot(slot).is_cast()) {
          kept.back()[slot] = {false, false, false};
        }
      }
    }
    return kept;
  }

  OptimizerConfig exact_types() const {
    OptimizerConfig optimizer = run_.config.optimizer;
    optimizer.weights = optimizer.gradients = plain_state(DType::f32);
    return optimizer;
  }

  std::vector<double> gradient(Backend& backend, const Recipe& recipe,
                               const OptimizerConfig& optimizer, bool has_states) {
    Parameters parameters(backend, run_.config.model, optimizer, recipe.activation_dtype);
    load_weights(run_.checkpoint, parameters);
    const StageConfig& stage = run_.stage();
    Transformer transformer(
        backend, parameters, run_.config.model, recipe,
        BatchShape{stage.micro_batch_sequences, stage.sequence_length, run_.config.attention});
    if (has_states) {
      if (recipe_.hash == run_.recipe.hash) {
        load_quantizer_states(run_.checkpoint, backend, transformer.linears());
      }
      continue_histories(backend, run_.histories, transformer.linears());
    }
    const StepBlock block(backend);
    StepContext context = step_.context;
    context.log_statistics = false;
    const TrainingStep training{backend, parameters, transformer, block};
    training.accumulate(context, {&step_.batch, 1}, 0.0);
    return gradients_of(backend, parameters);
  }

  Backend& backend_;
  const CheckpointedRun& run_;
  const StepBatch& step_;
  Recipe recipe_;
  int threads_;
  Declaration declaration_;
  std::vector<double> exact_;
  int replaced_ = 0;
};

}  // namespace

std::optional<double> Attribution::share_alone(const Part& part) const {
  if (!part.alone) return std::nullopt;
  return (*part.alone * *part.alone - nothing * nothing) / (whole * whole);
}

double Attribution::share_without(const Part& part) const {
  return 1.0 - part.without * part.without / (whole * whole);
}

Recipe with_switches(const Recipe& recipe, const ModelConfig& model, const Switches& switches,
                     int& replaced) {
  Recipe result = recipe;
  result.keep_high_precision.clear();
  result.overrides.clear();
  if (!switches.storage) result.activation_dtype = DType::f32;
  const Declaration declaration = declaration_of(model);
  const auto layers = static_cast<int>(model.num_hidden_layers);
  for (std::size_t i = 0; i < declaration.linears().size(); ++i) {
    const std::string& name = declaration.linears()[i].name;
    result.overrides.push_back(
        {name, switched(recipe.for_layer(name, layers), switches, switches.layers[i], replaced)});
  }
  return result;
}

Attribution attribute_gradient(Backend& backend, const CheckpointedRun& run, const StepBatch& step,
                               const Recipe& recipe, int threads,
                               const std::function<void(const std::string&)>& progress) {
  if (!backend.is_on_host()) {
    throw Error(
        fmt::format("backend '{}' keeps operands where they cannot be replaced; accepted: "
                    "--backend cpu",
                    backend.name()));
  }
  StageConfig stage = run.stage();
  stage.eval.reset();
  plan_memory(run.config, stage, recipe, backend);  // refuses what cannot run
  Attribution result;
  const Recipe scaled = with_known_histories(recipe, run, result.remarks);
  progress("the gradient in double precision");
  GradientError error(backend, run, step, scaled, threads);
  const std::vector<LinearDeclaration>& linears = error.declaration().linears();
  const Switches on = all_switches(linears.size(), true), off = all_switches(linears.size(), false);
  progress("the gradient under recipe " + recipe.name);
  result.whole = error.of(on);
  result.nothing = error.of(off);
  for (const SwitchGroup& group : switch_groups(linears)) {
    PartGroup parts{group.name, {}};
    for (const Switch& one : group.switches) {
      progress("the gradient without " + one.name);
      Part part{one.name, std::nullopt, 0};
      if (group.name != kScales) {
        Switches alone = off;
        one.set(alone, true);
        part.alone = error.of(alone);
      }
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
