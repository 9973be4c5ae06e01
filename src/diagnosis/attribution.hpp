// Attributes the error of a gradient to its sources.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/diagnosis/checkpoint_step.hpp"

namespace fp8lab {

/// Errors of the gradient with and without one source (ErrorSource).
struct Part {
  std::string name;
  /// Error with this source only. None for a source of scales: by itself a scale changes no value,
  /// only the effects of casts, underflow and saturation.
  std::optional<double> alone;
  double without = 0;  ///< error with every other source
};

/// The parts of an ErrorSourceGroup.
struct PartGroup {
  std::string name;
  std::vector<Part> parts;
};

struct Attribution {
  double whole = 0;    ///< error of the gradient with every source
  double nothing = 0;  ///< error of the gradient with no source
  std::vector<PartGroup> groups;
  std::vector<std::string> remarks;  ///< sentences

  /// Shares of the squared error, since the squares of independent errors add:
  /// (alone^2 - nothing^2) / whole^2, and 1 - without^2 / whole^2.
  std::optional<double> share_alone(const Part& part) const;
  double share_without(const Part& part) const;
};

/// Selects the parts to measure.
struct AttributionChoice {
  /// Names of groups; empty: all except "layer", which needs two gradients per layer.
  std::vector<std::string> groups;
  /// Patterns (chosen_layers) of the layers in the group "layer". If not empty, the group is
  /// measured even if `groups` does not name it; if empty, the group has all layers.
  std::vector<std::string> layers;
};

/// Called before each gradient with its name, the number of completed gradients and their total.
using GradientProgress = std::function<void(const std::string&, std::size_t, std::size_t)>;

/// Called before the first gradient with the number of gradients and their estimated total time in
/// seconds; not called for short runs.
using GradientEstimate = std::function<void(std::size_t, double)>;

/// Computes the gradient g of all parameters at `step` of `run` under each of `recipes`, and its
/// error |g - g*| / |g*| against the gradient g* in double precision; then the errors with and
/// without each source. Returns one attribution for each recipe, in their order; it does not depend
/// on the other recipes. The sums of squares are those of ops::SquareDistance, added in the order
/// of the parameters. g* is computed once, on the CPU; all else on `backend`. Equal recipes and
/// switches share one gradient, so a source that changes nothing, such as an estimator that the
/// recipe lacks, costs no gradient; neither does one whose errors turn out to occur in no element.
/// Throws Error if the model cannot run on `backend` under a recipe or with its sources switched
/// off, or a group or layer does not exist.
std::vector<Attribution> attribute_gradients(Backend& backend, const CheckpointedRun& run,
                                             const StepBatch& step,
                                             const std::vector<Recipe>& recipes,
                                             const AttributionChoice& choice, int threads,
                                             const GradientProgress& progress,
                                             const GradientEstimate& estimate = nullptr);

}  // namespace fp8lab
