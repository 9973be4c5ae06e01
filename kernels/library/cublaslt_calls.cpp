#include "kernels/library/cublaslt_calls.hpp"

#include <dlfcn.h>

#include <string>

#include "emulation/base/error.hpp"

namespace fp8lab::cuda {
namespace {

CublasLtCalls load() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw RuntimeFailure("cuBLASLt cannot be loaded: " + std::string(dlerror()));
  CublasLtCalls calls{};
  const auto find = [&]<class Function>(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(library, symbol));
    if (function == nullptr) throw RuntimeFailure(name + " has no " + symbol);
  };
  find(calls.create, "cublasLtCreate");
  find(calls.destroy, "cublasLtDestroy");
  find(calls.status_string, "cublasLtGetStatusString");
  find(calls.version, "cublasLtGetVersion");
  find(calls.matmul, "cublasLtMatmul");
  find(calls.algorithm_attribute, "cublasLtMatmulAlgoConfigGetAttribute");
  find(calls.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(calls.create_operation, "cublasLtMatmulDescCreate");
  find(calls.destroy_operation, "cublasLtMatmulDescDestroy");
  find(calls.set_of_operation, "cublasLtMatmulDescSetAttribute");
  find(calls.create_preference, "cublasLtMatmulPreferenceCreate");
  find(calls.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(calls.set_of_preference, "cublasLtMatmulPreferenceSetAttribute");
  find(calls.create_layout, "cublasLtMatrixLayoutCreate");
  find(calls.destroy_layout, "cublasLtMatrixLayoutDestroy");
  return calls;
}

}  // namespace

const CublasLtCalls& cublaslt() {
  static const CublasLtCalls calls = load();
  return calls;
}

}  // namespace fp8lab::cuda
