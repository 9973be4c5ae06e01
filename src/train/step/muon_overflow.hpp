// Matrices that Muon does not update, since the norm of their momentum overflows.
#pragma once

#include <optional>

#include "emulation/backend.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/model/weights/parameters.hpp"

namespace fp8lab {

/// Muon divides a direction by its norm, whose square is summed in FP32 (ops::Orthogonalize). From
/// a norm of 1.8e19 on the sum is infinite and the direction becomes zero, in every step until the
/// momentum has decayed, though loss and gradients are finite.
class MuonOverflow {
 public:
  /// Looks at the momentum of every matrix again, as after a resume.
  void look_again() { looks_ = true; }

  /// Called after an update with `record` of its step. Looks at momenta only after a gradient norm
  /// that could have such an effect, until none overflows. Returns an event if matrices begin to
  /// get no update.
  std::optional<EventRecord> look(Backend& backend, const Parameters& parameters,
                                  const UpdateSpec& spec, const StepRecord& record);

 private:
  bool looks_ = false;      ///< a momentum may overflow
  bool overflows_ = false;  ///< the event has been given
};

}  // namespace fp8lab
