// The gated activation of a feed-forward block.
#pragma once

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::ops {

/// out (T, F) = silu(gate) * up; gate_up (T, 2F) holds gate in the first F columns, then up.
struct SwigluForward {
  TensorView gate_up, out;

  void check() const;
  const TensorView& output() const { return out; }
};

/// sig = sigmoid(gate);  dup = dout * silu(gate);
/// dgate = (dout * up) * (sig * (1 + gate * (1 - sig))).
struct SwigluBackward {
  TensorView gate_up, dout, dgate_up;

  void check() const;
  const TensorView& output() const { return dgate_up; }
};

}  // namespace fp8lab::ops
