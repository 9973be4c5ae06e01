// Functions of cuBLASLt, whose library is loaded at the first use.
#pragma once

#include <cublasLt.h>

namespace fp8lab::cuda {

/// The functions of cuBLASLt that this program calls, by their names there without the prefix.
struct CublasLtCalls {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtGetStatusString) status_string;
  decltype(&::cublasLtGetVersion) version;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) algorithm_attribute;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmulDescCreate) create_operation;
  decltype(&::cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&::cublasLtMatmulDescSetAttribute) set_of_operation;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_of_preference;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout;
};

/// Returns the functions, and loads the library before the first of them is called: a program that
/// is linked with it takes 0.1 s and 200 MB more at every start, which few of its uses need. The
/// library is that of the headers' major version, in the path of the loader or where it was when
/// the program was built. It stays loaded. Throws RuntimeFailure if it cannot be loaded or lacks a
/// function.
const CublasLtCalls& cublaslt();

}  // namespace fp8lab::cuda
