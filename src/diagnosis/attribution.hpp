// Where the error of a gradient comes from.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"
#include "src/diagnosis/partial_quantization.hpp"

namespace fp8lab {

/// Which sources of error a step keeps. True: it is there as in the recipe.
struct Switches {
  struct Layer {
    PerSlot<ElementErrors> operands{};
    PerGemm<bool> accumulators = {true, true, true};
  };
  std::vector<Layer> layers;  ///< in the order of Declaration::linears()
  bool storage = true;        ///< types of activations, working weights, gradients, GEMM outputs
  bool scale_rounding = true;
  bool amax_history = true;
};

/// A source, or all sources of a slot, GEMM or layer, switched off and alone.
struct Part {
  std::string name;
  /// Error with nothing else; nothing for what scales are made of: by itself a scale changes no
  /// value, only what casts, underflow and saturation do to it.
  std::optional<double> alone;
  double without = 0;  ///< error with everything else
};

/// Parts that make up the error, but for those of scales.
struct PartGroup {
  std::string name;
  std::vector<Part> parts;
};

struct Attribution {
  double whole = 0;    ///< error of the gradient, with every source
  double nothing = 0;  ///< with none of them
  std::vector<PartGroup> groups;
  std::vector<std::string> remarks;  ///< sentences

  /// Shares of the whole, in squares, in which errors of independent sources add: (alone^2 -
  /// nothing^2) / whole^2, and 1 - without^2 / whole^2.
  std::optional<double> share_alone(const Part& part) const;
  double share_without(const Part& part) const;
};

/// The linear layers of `recipe` as an override each, with the sources that `switches` leaves out
/// replaced by fields of their specs: ideal_exact for the accumulator (promoted where scales
/// change), FP32 for scales of current tiles, the tensor's own amax for a history, and FP32 for
/// what is stored. Element errors are no field (PartialQuantization). `replaced` counts the GEMMs
/// whose accumulator goes too because it takes no FP32 scales.
Recipe with_switches(const Recipe& recipe, const ModelConfig& model, const Switches& switches,
                     int& replaced);

/// Takes the gradient of all parameters at `step` of `run` under `recipe`, and compares it with
/// that in double precision: |g - g*| / |g*|. Then source by source as Attribution says. `backend`
/// is the CPU's. Throws Error for what cannot run under `recipe`.
Attribution attribute_gradient(Backend& backend, const CheckpointedRun& run, const StepBatch& step,
                               const Recipe& recipe, int threads,
                               const std::function<void(const std::string&)>& progress);

}  // namespace fp8lab
