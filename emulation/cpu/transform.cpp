// Operations of transforms and estimators; they run the reference implementation.
#include "emulation/reference/transform.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/reference/clamp.hpp"
#include "emulation/reference/estimator.hpp"

namespace fp8lab::cpu {

void run(const ops::SmoothingFactors& op) { reference::smoothing_factors(op); }

void run(const ops::EstimatorFactor& op) { reference::estimator_factor(op); }

void run(const ops::RotateBack& op) {
  reference::FloatMatrix product = reference::rotated_back(op);
  run(ops::Copy{product.view(), op.d});
}

void run(const ops::Compensate& op) { reference::compensate(op); }

}  // namespace fp8lab::cpu
