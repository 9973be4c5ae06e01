// The distance of a tensor from exact values.
#pragma once

#include <cstdint>

#include "emulation/numerics/tree_sum.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// sums (1, chunks) f64: sums[i] is numerics::chunk_sum over the i-th 4096 elements, in row-major
/// order, of (x - y)^2 in FP64, difference and square rounded. `x` is bf16 or f32, `exact` (y) is
/// f64, both contiguous and of the same shape. NaN is canonical (0x7FF8 and zeros).
struct SquareDistance {
  static constexpr std::string_view kName = "square_distance";
  static constexpr WorkClass kClass = WorkClass::measurement;

  TensorView x;
  TensorView exact;
  TensorView sums;

  /// Returns the number of sums of `size` elements.
  FP8LAB_HD static constexpr std::int64_t chunks(std::int64_t size) {
    return (size + numerics::kSumChunk - 1) / numerics::kSumChunk;
  }
  /// Returns a sum as it is stored.
  FP8LAB_HD static constexpr double stored(double sum) {
    return sum == sum ? sum : __builtin_nan("");
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("x", x));
    visit(reads("exact", exact));
    visit(writes("sums", sums));
  }
  /// Throws Error for shapes and types that do not fit.
  void check() const;
  /// Elements read.
  double work() const { return 2.0 * elements(x); }
};

}  // namespace fp8lab::ops
