// Gradients by the estimators of their quantizers.
#pragma once

#include "emulation/ops/estimator_factor.hpp"

namespace fp8lab::reference {

/// What the operation says.
void estimator_factor(const ops::EstimatorFactor& op);

}  // namespace fp8lab::reference
