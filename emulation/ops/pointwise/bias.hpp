// Column sums: the gradient of a bias.
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab {

/// Rows that a column sum adds sequentially before it starts a new partial sum.
inline constexpr std::int64_t kColumnSumBlock = 128;

namespace ops {

/// dbias (1, N) f32 = dbias + column_sum(dy), dy (T, N). column_sum adds blocks of kColumnSumBlock
/// consecutive rows, each sequentially ascending from +0, and then adds the block sums
/// sequentially ascending from +0.
struct BiasBackward {
  static constexpr std::string_view kName = "bias_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView dy, dbias;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("dy", dy));
    visit(updates("dbias", dbias));
  }
  void check() const;
  /// Elements read.
  double work() const { return elements(dy); }
};

}  // namespace ops
}  // namespace fp8lab
