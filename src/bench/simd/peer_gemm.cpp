#include "src/bench/simd/peer_gemm.hpp"

#include "src/bench/simd/eigen_apart.hpp"

namespace fp8lab {
namespace FP8LAB_ISA {

void peer_gemm(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
               std::int64_t k) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Matrix> left(a, m, k), right(b, n, k);
  Eigen::Map<Matrix>(c, m, n).noalias() = left * right.transpose();
}

}  // namespace FP8LAB_ISA
}  // namespace fp8lab
