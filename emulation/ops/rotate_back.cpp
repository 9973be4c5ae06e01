#include "emulation/ops/rotate_back.hpp"

#include "emulation/ops/checks.hpp"
#include "emulation/ops/operand_checks.hpp"

namespace fp8lab::ops {

void RotateBack::check() const {
  const Checks checks("rotate_back");
  checks.require(a.spec.transform.left || b.spec.transform.left,
                 "an operand needs a transform of its rows");
  checks.activation("D", d, a.rows, b.rows);
  check_transform(a, a.rows, a.k);
  check_transform(b, b.rows, b.k);
}

}  // namespace fp8lab::ops
