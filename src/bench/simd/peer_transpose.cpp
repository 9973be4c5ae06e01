#include "src/bench/simd/peer_transpose.hpp"

#include "src/bench/simd/eigen_apart.hpp"

namespace fp8lab {
namespace FP8LAB_ISA {

void peer_transpose(const std::uint16_t* from, std::int64_t rows, std::int64_t cols,
                    std::int64_t from_stride, std::uint16_t* to, std::int64_t to_stride) {
  using Matrix = Eigen::Matrix<std::uint16_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Stride = Eigen::OuterStride<>;
  const Eigen::Map<const Matrix, 0, Stride> source(from, rows, cols, Stride(from_stride));
  Eigen::Map<Matrix, 0, Stride>(to, cols, rows, Stride(to_stride)) = source.transpose();
}

}  // namespace FP8LAB_ISA
}  // namespace fp8lab
