// Where the error of a gradient comes from.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// A source of error (ErrorSource), switched off and alone.
struct Part {
  std::string name;
  /// Error with nothing else; nothing for what scales are made of: by itself a scale changes no
  /// value, only what casts, underflow and saturation do to it.
  std::optional<double> alone;
  double without = 0;  ///< error with everything else
};

/// An ErrorSourceGroup.
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

/// Selects the parts to measure.
struct AttributionChoice {
  /// Names of groups; empty: all but "layer", which takes two gradients a layer.
  std::vector<std::string> groups;
  /// Patterns of layers (chosen_layers) that the group "layer" is made of; with them it is there
  /// whatever `groups` says, and without them it is of all layers.
  std::vector<std::string> layers;
};

/// Told which gradient is taken next, how many are done, and how many there are.
using GradientProgress = std::function<void(const std::string&, std::size_t, std::size_t)>;

/// Called before the first gradient with the number of gradients and their estimated total time in
/// seconds; not called for short runs.
using GradientEstimate = std::function<void(std::size_t, double)>;

/// Takes the gradient of all parameters at `step` of `run` under `recipe`, and compares it with
/// that in double precision: |g - g*| / |g*|. Then source by source as Attribution says. A source
/// that changes nothing, such as an estimator that the recipe has not, takes no gradient: those of
/// equal recipes and switches are one. `backend` is the CPU's. Throws Error for what cannot run
/// under `recipe`, and for a group or a layer that there is not.
Attribution attribute_gradient(Backend& backend, const CheckpointedRun& run, const StepBatch& step,
                               const Recipe& recipe, const AttributionChoice& choice, int threads,
                               const GradientProgress& progress,
                               const GradientEstimate& estimate = nullptr);

}  // namespace fp8lab
