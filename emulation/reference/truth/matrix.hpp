// Tensors of the truth path as Eigen matrices.
#pragma once

#include <cstdint>

#include <Eigen/Core>

#include "emulation/base/error.hpp"
#include "emulation/base/tensor_view.hpp"

namespace fp8lab::truth {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;

inline Map matrix(const TensorView& view) {
  FP8LAB_ASSERT(view.dtype == DType::f64);
  return {view.row<double>(0), view.rows, view.cols, Eigen::OuterStride<>(view.row_stride)};
}

inline double& element(const TensorView& view, std::int64_t column) {
  return view.row<double>(0)[column];
}

}  // namespace fp8lab::truth
