#include "emulation/ops/quantize/delayed_scale.hpp"

#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab::ops {

void UpdateDelayedScale::check() const { check_delayed_state(spec, state); }

}  // namespace fp8lab::ops
