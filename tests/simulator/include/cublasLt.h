// What gemm_cublaslt.hpp names of the library, which the simulator does not have.
#pragma once

// NOLINTBEGIN: names of cuBLASLt
struct cublasLtMatmulDescOpaque_t {};
struct cublasLtMatrixLayoutOpaque_t {};
struct cublasLtMatmulAlgo_t {};
struct cublasLtMatmulHeuristicResult_t {};
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
using cublasLtHandle_t = void*;
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDescOpaque_t*) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayoutOpaque_t*) {
  return CUBLAS_STATUS_SUCCESS;
}
// NOLINTEND
