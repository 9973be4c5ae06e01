#include "emulation/ops/pointwise/copy.hpp"

#include <initializer_list>

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64;
}

}  // namespace

void Copy::check() const {
  const Checks checks("copy");
  checks.require(source.has_memory(), "the source is missing");
  const bool same = source.dtype == destination.dtype;
  checks.tensor("destination", destination, source.rows, source.cols,
                same ? std::initializer_list<DType>{source.dtype}
                     : std::initializer_list<DType>{DType::bf16, DType::f32, DType::f64});
  checks.require(same || is_float(source.dtype),
                 "source " + describe(source) + " converts to its own type only");
}

}  // namespace fp8lab::ops
