// What gemm_cublaslt.hpp names of the library, which the simulator does not have.
#pragma once

// NOLINTBEGIN: names of cuBLASLt
struct cublasLtMatmulDescOpaque_t {};
struct cublasLtMatrixLayoutOpaque_t {};
struct cublasLtMatmulAlgo_t {};
struct cublasLtMatmulHeuristicResult_t {};
using cublasLtHandle_t = void*;
// NOLINTEND
