// Conversion between storage types.
#pragma once

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::ops {

/// destination = source for bf16, f32 and f64 in any combination, each element rounded once to
/// nearest even; equal types copy bits, also u8 and i32.
struct Copy {
  TensorView source;
  TensorView destination;

  void check() const;
};

}  // namespace fp8lab::ops
