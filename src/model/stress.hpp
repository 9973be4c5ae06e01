// Stresses of a stage (StageConfig::stress): what they do to weights and gradients around one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/model/weights/parameters.hpp"

namespace fp8lab {

/// The gain that outlier channels have after `done` of the steps in which they grow:
/// gain^(done / over_steps), its exponent of two rounded towards zero.
double gain_after(const StressConfig& stress, std::int64_t done);

/// One step of a stage under the stresses that are due in it.
///
/// outlier_channels multiplies the vectors of every norm in front of a layer's linear layer, in the
/// same channels, by g and divides the matching input columns of that layer by g. All factors are
/// powers of two: the function stays to the bit, as far as no weight becomes subnormal. Moments of
/// the optimizer stay as they are.
///
/// aligned_swiglu sets rows of w_gate (and elements of its bias) to factor * the same rows of w_up
/// (Fishman et al. 2024, arXiv:2409.12517): silu(c u) u is c u^2 there for large u. The function
/// changes.
///
/// spike multiplies what enters those same linear layers, all channels of it, by a power of two for
/// one step. It is made of the norms' vectors times the factor and the consuming weights divided by
/// it, which scales every product and gradient without rounding: only quantizers tell the step from
/// another one. end() brings the gradients back and restores the weights.
///
/// Channels are drawn from the run's seed, and from the layer for aligned_swiglu: a step needs
/// nothing of the one before, so that a resumed run goes on with the same bits.
class StressedStep {
 public:
  /// Changes the weights for the step that follows `stage_step` steps of `stage`.
  StressedStep(Backend& backend, const Parameters& parameters, const StageConfig& stage,
               std::int64_t stage_step, std::uint64_t seed);
  /// After the gradients, before the update: undoes what is for one step alone.
  void end();
  /// After end(): does it again, for gradients that are taken once more.
  void begin_again();

  /// True when weights have changed for good: their storage has not rounded them yet.
  bool has_planted() const { return has_planted_; }
  /// A line for each stress that changed something, "spike: factor 64".
  const std::vector<std::string>& events() const { return events_; }

 private:
  struct Saved {
    const Parameter& parameter;
    TensorView tensor;
    std::vector<std::byte> bytes;
  };

  void grow_outliers(const StressConfig& stress, std::int64_t done, std::uint64_t seed);
  void align(const StressConfig& stress, std::uint64_t seed);
  void spike();
  /// Multiplies a tensor of `parameter` until end().
  void scale_until_end(const Parameter& parameter, const TensorView& tensor, double factor);

  Backend& backend_;
  const Parameters& parameters_;
  std::vector<std::string> events_;
  bool has_planted_ = false;
  double spike_ = 1.0;  ///< product of the factors of all spikes
  std::vector<Saved> saved_;
};

}  // namespace fp8lab
