// Gradients by the estimators of quantizers.
#pragma once

#include "emulation/ops/gemm/estimator_factor.hpp"

namespace fp8lab::reference {

/// Implements ops::EstimatorFactor.
void estimator_factor(const ops::EstimatorFactor& op);

}  // namespace fp8lab::reference
