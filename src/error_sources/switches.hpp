// The sources of error of a recipe, and a recipe without some of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "emulation/spec/slot.hpp"
#include "src/config/config.hpp"
#include "src/model/declaration.hpp"

namespace fp8lab {

/// The errors of one operand's elements, by kind: each element has at most one, as
/// ops::MeasureOperand counts them. True: it is kept.
struct ElementErrors {
  bool cast = true;  ///< rounding to the element format, of the elements that follow none below
  bool underflow = true;   ///< not zero before, zero after
  bool saturation = true;  ///< beyond the largest magnitude of its tile, or not finite after

  bool all() const { return cast && underflow && saturation; }
  bool operator==(const ElementErrors&) const = default;
};

/// Which sources of error are kept. True: it is there as in the recipe.
struct Switches {
  struct Layer {
    PerSlot<ElementErrors> operands{};
    PerSlot<bool> estimators = {true, true, true, true, true, true};  ///< where a slot has one
    PerGemm<bool> accumulators = {true, true, true};
  };
  std::vector<Layer> layers;  ///< in the order of Declaration::linears()
  bool storage = true;        ///< types of activations, working weights, gradients, GEMM outputs
  bool scale_rounding = true;
  bool amax_history = true;
};

/// Everything kept, or nothing but what scales are made of.
Switches all_switches(std::size_t layers, bool kept);

/// A source, or all sources of a slot, GEMM or layer. An estimator is the derivative of its slot's
/// quantizer: it is a source of that slot, and so of fprop, whichever GEMM it multiplies.
struct ErrorSource {
  std::string name;  ///< "underflow", "fprop.x", "dgrad" or "layers.0.mlp.down"
  std::function<void(Switches&, bool kept)> set;
};

/// Sources that make up the whole error.
struct ErrorSourceGroup {
  std::string name;  ///< "source", "scale", "slot", "GEMM" or "layer"
  std::vector<ErrorSource> sources;
  /// What scales are made of, which is no part of a whole: by itself a scale changes no value, only
  /// what casts, underflow and saturation do to it.
  bool is_of_scales = false;
};

/// Every source of a model with these linear layers: the one table of their names.
std::vector<ErrorSourceGroup> error_sources(const std::vector<LinearDeclaration>& linears);

/// The linear layers of `recipe` as an override each, with the sources that `switches` leaves out
/// replaced by fields of their specs: ideal_exact for the accumulator (promoted where scales
/// change), FP32 for scales of current tiles, the tensor's own amax for a history, the
/// straight-through estimator, and FP32 for what is stored. Element errors are no field
/// (PartialQuantization). `replaced` counts the GEMMs whose accumulator goes too because it takes
/// no FP32 scales.
Recipe with_switches(const Recipe& recipe, const ModelConfig& model, const Switches& switches,
                     int& replaced);

/// Storage without errors: weights, gradients and moments in FP32.
OptimizerConfig exact_storage(OptimizerConfig optimizer);

}  // namespace fp8lab
