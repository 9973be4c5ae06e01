#include "src/error_sources/switches.hpp"

#include <numeric>
#include <utility>

#include "emulation/spec/gemm_rules.hpp"
#include "src/architecture/parts.hpp"

namespace fp8lab {
namespace {

/// Returns `spec` with exact sums, in chunks within which the scales are constant.
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
  spec.scale.factor = 1.0f;
  spec.scale.four_over_six = numerics::FourOverSix::none;
  spec.scale.outer = numerics::OuterScale::tensor;
}

LinearRecipe switched(LinearRecipe recipe, const Switches& switches, const Switches::Layer& layer,
                      int& replaced) {
  for (const Slot slot : kSlots) {
    QuantSpec& spec = recipe.slot(slot);
    if (!layer.estimators[slot]) spec.estimator = {};
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

void set_slot(Switches::Layer& layer, Slot slot, bool on) {
  layer.operands[slot] = {on, on, on};
  layer.estimators[slot] = on;
}

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

}  // namespace

Switches all_switches(std::size_t layers, bool kept) {
  Switches switches;
  Switches::Layer layer;
  if (!kept) {
    for (const Slot slot : kSlots) set_slot(layer, slot, false);
    layer.accumulators = {false, false, false};
  }
  switches.layers.assign(layers, layer);
  switches.storage = kept;
  return switches;
}

std::vector<ErrorSourceGroup> error_sources(const std::vector<LinearDeclaration>& linears) {
  std::vector<ErrorSourceGroup> groups(5);
  groups[0] = {"source",
               {{"element cast", in_every_operand(&ElementErrors::cast)},
                {"underflow", in_every_operand(&ElementErrors::underflow)},
                {"saturation", in_every_operand(&ElementErrors::saturation)},
                {"accumulator", in_every_layer([](Switches::Layer& layer, bool on) {
                   layer.accumulators = {on, on, on};
                 })},
                {"storage", [](Switches& switches, bool on) { switches.storage = on; }},
                {"estimator", in_every_layer([](Switches::Layer& layer, bool on) {
                   layer.estimators.fill(on);
                 })}}};
  groups[1] = {
      "scale",
      {{"scale rounding", [](Switches& switches, bool on) { switches.scale_rounding = on; }},
       {"amax history", [](Switches& switches, bool on) { switches.amax_history = on; }}},
      true};
  groups[2].name = "slot";
  for (const Slot slot : kSlots) {
    groups[2].sources.push_back(
        {slot_name(slot),
         in_every_layer([slot](Switches::Layer& layer, bool on) { set_slot(layer, slot, on); })});
  }
  groups[3].name = "GEMM";
  for (const GemmRole role : kGemmRoles) {
    groups[3].sources.push_back(
        {gemm_role_name(role),
         in_every_layer([role](Switches::Layer& layer, bool on) { set_gemm(layer, role, on); })});
  }
  groups[4].name = "layer";
  for (std::size_t i = 0; i < linears.size(); ++i) {
    groups[4].sources.push_back({linears[i].name, [i](Switches& switches, bool on) {
                                   for (const GemmRole role : kGemmRoles) {
                                     set_gemm(switches.layers[i], role, on);
                                   }
                                 }});
  }
  return groups;
}

Recipe with_switches(const Recipe& recipe, const ModelConfig& model, const Switches& switches,
                     int& replaced) {
  Recipe result = recipe;
  result.keep_high_precision.clear();
  result.overrides.clear();
  if (!switches.storage) {
    result.activation_dtype = DType::f32;
    result.saved_activations.clear();
    result.attention = {};
  }
  const Declaration declaration = declaration_of(model);
  const auto layers = static_cast<int>(model.layer_count());
  for (std::size_t i = 0; i < declaration.linears().size(); ++i) {
    const std::string& name = declaration.linears()[i].name;
    result.overrides.push_back(
        {name, switched(recipe.for_layer(name, layers), switches, switches.layers[i], replaced)});
  }
  return result;
}

OptimizerConfig exact_storage(OptimizerConfig optimizer) {
  optimizer.weights = optimizer.gradients = plain_state(DType::f32);
  optimizer.first_moment = optimizer.second_moment = plain_state(DType::f32);
  return optimizer;
}

}  // namespace fp8lab
