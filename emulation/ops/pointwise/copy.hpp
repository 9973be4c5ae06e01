// Conversion between storage types.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// destination = source for bf16, f32 and f64 in any combination, each element rounded once to
/// nearest even; equal types copy bits, also u8 and i32.
struct Copy {
  static constexpr std::string_view kName = "copy";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView source;
  TensorView destination;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("source", source));
    visit(writes("destination", destination));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return elements(source, destination); }
};

}  // namespace fp8lab::ops
