// The most likely token.
#pragma once

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::ops {

/// out (1, rows) i32 = column of the largest element of each row; a later element replaces an
/// earlier one only when it is greater.
struct Argmax {
  TensorView logits, out;

  void check() const;
};

}  // namespace fp8lab::ops
