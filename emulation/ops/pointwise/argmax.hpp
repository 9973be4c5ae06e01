// The most likely token.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// out (1, rows) i32 = column of the largest element of each row. A later element replaces an
/// earlier one only if it is greater.
struct Argmax {
  static constexpr std::string_view kName = "argmax";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView logits, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("logits", logits));
    visit(writes("out", out));
  }
  void check() const;
  /// Elements read.
  double work() const { return elements(logits); }
};

}  // namespace fp8lab::ops
