// The error sources of a recipe, and the recipe without some of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "emulation/ops/quantize/partial_values.hpp"
#include "emulation/spec/recipe.hpp"
#include "emulation/spec/slot.hpp"
#include "src/architecture/declaration.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// The error sources that are kept. True: as in the recipe.
struct Switches {
  struct Layer {
    PerSlot<ElementErrors> operands{};
    PerSlot<bool> estimators = {true, true, true, true, true, true};  ///< if a slot has one
    PerGemm<bool> accumulators = {true, true, true};
  };
  std::vector<Layer> layers;  ///< in the order of Declaration::linears()
  /// Types of activations, saved ones too, of working weights, gradients, GEMM outputs.
  bool storage = true;
  bool scale_rounding = true;
  bool amax_history = true;
};

/// Keeps all sources, or (`kept` = false) only the sources of scales.
Switches all_switches(std::size_t layers, bool kept);

/// A source, or all sources of a slot, GEMM or layer. An estimator is the derivative of its slot's
/// quantizer: it belongs to that slot, and thus to fprop, whichever GEMM's result it multiplies.
struct ErrorSource {
  std::string name;  ///< "underflow", "fprop.x", "dgrad" or "layers.0.mlp.down"
  std::function<void(Switches&, bool kept)> set;
};

/// Sources that together form the whole error.
struct ErrorSourceGroup {
  std::string name;  ///< "source", "scale", "slot", "GEMM" or "layer"
  std::vector<ErrorSource> sources;
  /// Sources of the scales, which are not part of a whole: a scale changes no value by itself, only
  /// the effects of casts, underflow and saturation.
  bool is_of_scales = false;
};

/// Returns every source of a model with these linear layers. Their names are defined only here.
std::vector<ErrorSourceGroup> error_sources(const std::vector<LinearDeclaration>& linears);

/// Returns `recipe` with one override for each linear layer, in which the sources left out by
/// `switches` are replaced through fields of the specs: ideal_exact for the accumulator (promoted
/// where scales change), FP32 for scales of current tiles, the tensor's own amax for a history, the
/// straight-through estimator, and FP32 for stored tensors. No field can express element errors
/// (PartialQuantization). `replaced` counts the GEMMs whose accumulator is replaced as well because
/// it accepts no FP32 scales.
Recipe with_switches(const Recipe& recipe, const ModelConfig& model, const Switches& switches,
                     int& replaced);

/// Returns storage without errors: weights, gradients and moments in FP32.
OptimizerConfig exact_storage(OptimizerConfig optimizer);

}  // namespace fp8lab
