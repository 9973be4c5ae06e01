// Eigen's FP32 GEMM, compiled once per instruction set.
#pragma once

#include <cstdint>

namespace fp8lab {

/// c (m, n) = a (m, k) b (n, k)^T, all row-major and contiguous, on the calling thread.
using PeerGemm = void (*)(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n,
                          std::int64_t k);

/// The copy for the best instruction set of this processor.
PeerGemm eigen_gemm();

/// OpenBLAS on one thread, or nullptr where libopenblas is not installed. It chooses its kernels by
/// processor, or as the environment variable OPENBLAS_CORETYPE says.
PeerGemm openblas_gemm();

}  // namespace fp8lab
