// Rows of bf16 or f32 tensors as f32 rows.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/base/tensor_view.hpp"
#include "emulation/cpu/simd/pointwise_kernels.hpp"

namespace fp8lab::cpu {

/// Returns columns [first, first + count) of a row as f32: the stored row itself if the tensor is
/// f32, else `scratch` (count floats) filled with the widened values.
inline const float* read_row(const PointwiseKernels& kernels, const TensorView& view,
                             std::int64_t row, std::int64_t first, std::int64_t count,
                             float* scratch) {
  if (view.dtype == DType::f32) return view.row<float>(row) + first;
  kernels.widen(view.row<std::uint16_t>(row) + first, count, scratch);
  return scratch;
}

/// Returns a whole row as f32, see above.
inline const float* read_row(const PointwiseKernels& kernels, const TensorView& view,
                             std::int64_t row, float* scratch) {
  return read_row(kernels, view, row, 0, view.cols, scratch);
}

/// Returns a vector as f32.
inline std::vector<float> values_of(const PointwiseKernels& kernels, const TensorView& vector) {
  std::vector<float> values(static_cast<std::size_t>(vector.cols));
  const float* row = read_row(kernels, vector, 0, values.data());
  if (row != values.data()) values.assign(row, row + vector.cols);
  return values;
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

/// Calls body(row, scratch) for every row, spread over the threads.
/// `scratch` holds `floats` floats.
template <class Body>
void for_each_row(std::int64_t rows, std::int64_t floats, const Body& body) {
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(floats));
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < rows; ++row) body(row, scratch.data());
  }
}

}  // namespace fp8lab::cpu
