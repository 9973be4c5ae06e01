#include "emulation/ops/gemm/estimator_factor.hpp"

#include "emulation/ops/checks.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"

namespace fp8lab::ops {

void EstimatorFactor::check() const {
  const Checks checks("estimator_factor");
  const QuantSpec& spec = operand.spec;
  checks.require(static_cast<bool>(spec.estimator), "the operand needs an estimator");
  checks.require(spec.is_quantized() && !spec.has_codebooks() && !spec.transform.is<Clamp>(),
                 "the operand needs codes of at most 8 bits without codebooks or clamp");
  checks.activation("source", source, operand.rows, operand.k);
  checks.activation("D", d, operand.rows, operand.k);
  check_transform(operand, operand.rows, operand.k);
  if (!spec.has_scale()) return;
  const TensorView& scales = operand.scales;
  checks.require(scales.dtype == DType::f32 && scales.rows == spec.tile_rows(operand.rows) &&
                     scales.cols == spec.scale_cols(operand.k),
                 "the operand needs its scales");
}

}  // namespace fp8lab::ops
