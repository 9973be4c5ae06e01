// The gated activation of a feed-forward block.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// out (T, F) = silu(gate) * up; gate_up (T, 2F) holds gate in the first F columns, then up.
struct SwigluForward {
  static constexpr std::string_view kName = "swiglu_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView gate_up, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("gate_up", gate_up));
    visit(writes("out", out));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(gate_up, out); }
  const TensorView& output() const { return out; }
};

/// sig = sigmoid(gate);  dup = dout * silu(gate);
/// dgate = (dout * up) * (sig * (1 + gate * (1 - sig))). dgate_up may be gate_up.
struct SwigluBackward {
  static constexpr std::string_view kName = "swiglu_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView gate_up, dout, dgate_up;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("gate_up", gate_up));
    visit(reads("dout", dout));
    visit(writes("dgate_up", dgate_up));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(gate_up, dout, dgate_up); }
  const TensorView& output() const { return dgate_up; }
};

}  // namespace fp8lab::ops
