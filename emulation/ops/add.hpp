// Elementwise sum.
#pragma once

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::ops {

/// sum = round(a + b); any of the three may be the same view.
struct Add {
  TensorView a, b, sum;

  void check() const;
};

}  // namespace fp8lab::ops
