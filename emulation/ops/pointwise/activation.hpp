// Activation functions of a feed-forward block without a gate.
#pragma once

#include <array>
#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

enum class Activation : std::uint8_t {
  gelu_tanh,  ///< GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)
  relu2,      ///< the square of max(x, 0) (So et al. 2021, arXiv:2109.08668)
};
inline constexpr std::array kActivations = {Activation::gelu_tanh, Activation::relu2};

namespace ops {

/// Elementwise. x and out (T, F); out may be x.
///   gelu_tanh: with the constants of numerics/gelu.hpp, a = 2 sqrt(2 / pi) and b = a * 0.044715:
///              sig = sigmoid(x * (a + (b * (x * x))));  out = x * sig
///   relu2:     x <= 0: +0, else x * x
struct ActivationForward {
  static constexpr std::string_view kName = "activation_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  Activation kind{};
  TensorView x, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(writes("out", out));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, out); }
  const TensorView& output() const { return out; }
};

/// x, dout and dx (T, F); dx may be either.
///   gelu_tanh: with sig as above and c = 3 * b: v = x * (sig * (1 - sig));
///              dx = dout * (sig + ((v * a) + (((v * x) * x) * c)))
///   relu2:     x <= 0: +0, else dout * (x + x)
struct ActivationBackward {
  static constexpr std::string_view kName = "activation_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  Activation kind{};
  TensorView x, dout, dx;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("dout", dout));
    visit(writes("dx", dx));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(x, dout, dx); }
  const TensorView& output() const { return dx; }
};

}  // namespace ops
}  // namespace fp8lab
