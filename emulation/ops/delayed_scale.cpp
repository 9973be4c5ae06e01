#include "emulation/ops/delayed_scale.hpp"

#include "emulation/ops/operand_checks.hpp"

namespace fp8lab::ops {

void UpdateDelayedScale::check() const { check_delayed_state(spec, state); }

}  // namespace fp8lab::ops
