// The gated activations of a feed-forward block.
#pragma once

#include <array>
#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

/// The function of the gate.
enum class Gate : std::uint8_t {
  silu,       ///< SwiGLU (Shazeer 2020, arXiv:2002.05202)
  gelu_tanh,  ///< GEGLU of the same paper, with GELU in its tanh form (Gemma)
};
inline constexpr std::array kGates = {Gate::silu, Gate::gelu_tanh};

namespace ops {

/// out (T, F) = f(gate) * up; gate_up (T, 2F) holds gate in the first F columns, then up.
///   silu:      f(gate) = gate * sigmoid(gate)
///   gelu_tanh: f(gate) as ops::ActivationForward computes it in FP32
struct GatedForward {
  static constexpr std::string_view kName = "gated_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  Gate gate{};
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

/// dup = dout * f(gate);  dgate = (dout * up) * f'(gate). dgate_up may be gate_up.
///   silu:      sig = sigmoid(gate);  f'(gate) = sig * (1 + gate * (1 - sig))
///   gelu_tanh: f'(gate) as ops::ActivationBackward multiplies dout by
struct GatedBackward {
  static constexpr std::string_view kName = "gated_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  Gate gate{};
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

}  // namespace ops
}  // namespace fp8lab
