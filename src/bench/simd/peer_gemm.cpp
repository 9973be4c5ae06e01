#include "src/bench/simd/peer_gemm.hpp"

// Each instruction set gets its own copy of the library's templates under its own namespace, so
// that the linker cannot hand AVX-512 code to callers compiled without it.
#define FP8LAB_JOIN_EXPANDED(a, b) a##b
#define FP8LAB_JOIN(a, b) FP8LAB_JOIN_EXPANDED(a, b)
#define Eigen FP8LAB_JOIN(eigen_, FP8LAB_ISA)
#define EIGEN_NO_DEBUG
#define EIGEN_DONT_PARALLELIZE

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

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
