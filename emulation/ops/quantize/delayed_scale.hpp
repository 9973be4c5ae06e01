// The update of delayed scales at the end of a step.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// Runs once per step (specification.md, "Scales"). A running amax of zero means that the tensor
/// did not occur: nothing changes. Otherwise the history moves by one, and the running amax becomes
/// its newest entry and is cleared. The largest entry (AmaxAlgorithm::max) or the newest
/// (most_recent), if finite and positive, gives the next scale by tile_scale with the rule's
/// margin; otherwise the scale is unchanged. A NaN or infinity thus holds the scale until it leaves
/// the history. With AmaxAlgorithm::window (Intel) a step whose amax is zero counts as well, the
/// scale is computed from the largest entry once every history_length steps, and a window of zeros
/// gives the rule's scale of a zero tile.
struct UpdateDelayedScale {
  static constexpr std::string_view kName = "update_delayed_scale";
  static constexpr WorkClass kClass = WorkClass::quantization;

  const QuantSpec& spec;
  TensorView state;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(updates("delayed state", state));
  }
  void check() const;
  /// Number of amaxes read.
  double work() const { return elements(state); }
};

}  // namespace fp8lab::ops
