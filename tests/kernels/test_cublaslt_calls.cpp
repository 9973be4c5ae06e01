// Loading cuBLASLt at its first use. Needs the library, and no device.
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>

#include "kernels/library/cublaslt_calls.hpp"

using namespace fp8lab;

namespace {

bool is_loaded() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
  REQUIRE(text.find("libc.so") != std::string::npos);
  return text.find("libcublasLt.so") != std::string::npos;
}

}  // namespace

TEST_CASE("cuBLASLt is loaded by its first call, in the version of the headers") {
  CHECK_FALSE(is_loaded());
  CHECK(cuda::cublaslt().version() / 10000 == CUBLAS_VER_MAJOR);
  CHECK(is_loaded());
}

TEST_CASE("functions of cuBLASLt that need a device have their names") {
  const auto name = [](auto function) {
    Dl_info info{};
    REQUIRE(dladdr(reinterpret_cast<void*>(function), &info) != 0);
    return std::string(info.dli_sname);
  };
  const cuda::CublasLtCalls& calls = cuda::cublaslt();
  CHECK(name(calls.create) == "cublasLtCreate");
  CHECK(name(calls.destroy) == "cublasLtDestroy");
  CHECK(name(calls.matmul) == "cublasLtMatmul");
  CHECK(name(calls.algorithm_attribute) == "cublasLtMatmulAlgoConfigGetAttribute");
  CHECK(name(calls.heuristic) == "cublasLtMatmulAlgoGetHeuristic");
}

TEST_CASE("functions of cuBLASLt that need no device work") {
  const cuda::CublasLtCalls& calls = cuda::cublaslt();
  CHECK(std::string(calls.status_string(CUBLAS_STATUS_NOT_SUPPORTED)).find("not supported") !=
        std::string::npos);
  cublasLtMatmulDesc_t operation = nullptr;
  REQUIRE(calls.create_operation(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
          CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CHECK(calls.set_of_operation(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                               sizeof transposed) == CUBLAS_STATUS_SUCCESS);
  CHECK(calls.destroy_operation(operation) == CUBLAS_STATUS_SUCCESS);
  cublasLtMatrixLayout_t layout = nullptr;
  REQUIRE(calls.create_layout(&layout, CUDA_R_8F_E4M3, 32, 16, 32) == CUBLAS_STATUS_SUCCESS);
  CHECK(calls.destroy_layout(layout) == CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreference_t preference = nullptr;
  REQUIRE(calls.create_preference(&preference) == CUBLAS_STATUS_SUCCESS);
  const std::uint64_t bytes = 1024;
  CHECK(calls.set_of_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                sizeof bytes) == CUBLAS_STATUS_SUCCESS);
  CHECK(calls.destroy_preference(preference) == CUBLAS_STATUS_SUCCESS);
}
