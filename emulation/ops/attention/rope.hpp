// Rotary position embedding.
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// Rotates `heads` consecutive heads of `head_dim` columns of x (T, heads * head_dim) in place.
/// Pairs element i with i + head_dim / 2 (GPT-NeoX order, as Qwen2 and Llama do). cosine and sine
/// are (positions, head_dim / 2) f32, positions (1, T) i32. With a = x[i], b = x[i + D/2],
/// c = cosine[position][i], s = sine[position][i]: x[i] = (a * c) - (b * s);
/// x[i + D/2] = (b * c) + (a * s). inverse negates the sines: this is the transposed map, which
/// the gradient needs, also if a table holds scaled cosines and sines.
struct Rope {
  static constexpr std::string_view kName = "rope";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView x, positions, cosine, sine;
  std::int64_t head_dim = 0;
  bool inverse = false;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("positions", positions));
    visit(reads("cosine", cosine));
    visit(reads("sine", sine));
    visit(updates("x", x));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return 2 * elements(x); }
};

}  // namespace fp8lab::ops
