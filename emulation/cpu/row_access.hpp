// Rows of bf16 or f32 tensors as f32 rows.
#pragma once

#include <cstdint>

#include "emulation/base/tensor_view.hpp"
#include "emulation/cpu/simd/pointwise_kernels.hpp"

namespace fp8lab::cpu {

/// Columns [first, first + count) of a row as f32: the stored row itself when the tensor is f32,
/// else `scratch` (count floats) filled with the widened values.
inline const float* read_row(const PointwiseKernels& kernels, const TensorView& view,
                             std::int64_t row, std::int64_t first, std::int64_t count,
                             float* scratch) {
  if (view.dtype == DType::f32) return view.row<float>(row) + first;
  kernels.widen(view.row<std::uint16_t>(row) + first, count, scratch);
  return scratch;
}

/// A whole row as f32, see above.
inline const float* read_row(const PointwiseKernels& kernels, const TensorView& view,
                             std::int64_t row, float* scratch) {
  return read_row(kernels, view, row, 0, view.cols, scratch);
}

/// Stores `count` values from column `first` on, rounded to the tensor's type, NaN canonical.
inline void write_row(const PointwiseKernels& kernels, const float* values, std::int64_t count,
                      const TensorView& view, std::int64_t row, std::int64_t first = 0) {
  if (view.dtype == DType::f32) {
    kernels.canonical(values, count, view.row<float>(row) + first);
  } else {
    kernels.narrow(values, count, view.row<std::uint16_t>(row) + first);
  }
}

}  // namespace fp8lab::cpu
