// What activations with trained numbers share (xielu.cu, dynamic_tanh.cu).
#pragma once

#include <cstdint>

#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/warp_rows.cuh"

namespace fp8lab::cuda {

/// Calls body.operator()<T>() with the type of a trained number.
template <class Body>
void with_number(const TensorView& number, const Body& body) {
  if (number.dtype == DType::bf16) return body.template operator()<std::uint16_t>();
  body.template operator()<float>();
}

/// Stores dx = slope(x, dout) of the elements of a row. All lanes of a warp call it; dx may be x or
/// dout.
template <class X, class DOut, class Dx, class Slope>
__device__ void store_gradient(const Rows<X>& x, const Rows<DOut>& dout, const Rows<Dx>& dx,
                               std::int64_t row, std::int64_t cols, const Slope& slope) {
  for_each_group_of_row(cols, [&](std::int64_t col, int count) {
    float values[kGroup], d[kGroup], result[kGroup];
    x.load_group(row, col, count, values);
    dout.load_group(row, col, count, d);
    for (int i = 0; i < kGroup; ++i) result[i] = slope(values[i], d[i]);
    dx.store_group(row, col, count, result);
  });
}

}  // namespace fp8lab::cuda
