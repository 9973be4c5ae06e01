#include "emulation/ops/pointwise/square_distance.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void SquareDistance::check() const {
  const Checks checks("square_distance");
  checks.activation("x", x, x.rows, x.cols);
  checks.contiguous("x", x);
  checks.tensor("exact", exact, x.rows, x.cols, {DType::f64});
  checks.contiguous("exact", exact);
  checks.vector("sums", sums, chunks(x.size()), {DType::f64});
}

}  // namespace fp8lab::ops
