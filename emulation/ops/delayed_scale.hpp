// The end of a step of delayed scaling.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/operand.hpp"

namespace fp8lab::ops {

/// Once a step (specification.md, "Scales"). A running amax of zero means that the tensor was not
/// seen: nothing changes. Otherwise the history moves by one, the running amax becomes its newest
/// entry and is cleared, and the largest entry (AmaxAlgorithm::max) or the newest (most_recent), if
/// finite and positive, gives the next scale by tile_scale with the rule's margin; else the scale
/// stays. A NaN or infinity thus holds the scale until it leaves the history.
/// AmaxAlgorithm::window (Intel): a step whose amax is zero counts as well, the scale is taken from
/// the largest entry once every history_length steps, and a window of zeros gives the rule's scale
/// of a zero tile.
struct UpdateDelayedScale {
  static constexpr std::string_view kName = "update_delayed_scale";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantSpec& spec;
  TensorView state;

  void check() const;
  /// Amaxes looked at.
  double work() const { return elements(state); }
};

}  // namespace fp8lab::ops
