#include "src/backend/factory.hpp"

#include <omp.h>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/base/machine.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "src/config/reading/nearest_name.hpp"
#if defined(FP8LAB_HAVE_CUDA)
#include "kernels/cuda_backend.hpp"
#endif

namespace fp8lab {

std::unique_ptr<Backend> make_backend(const std::string& name, int threads, const std::string& gemm,
                                      bool graphs) {
  if (gemm != "own" && gemm != "cublaslt") {
    throw InputError({.noun = "unknown GEMM implementation",
                      .key = gemm,
                      .nearest = did_you_mean(gemm, "own, cublaslt"),
                      .accepted = "own and cublaslt"});
  }
  if (gemm == "cublaslt" && name != "cuda") {
    throw Error("GEMM implementation cublaslt needs backend 'cuda', found '" + name + "'");
  }
  if (!graphs && name != "cuda") {
    throw InputError(
        {.key = "--no-graphs", .reason = "is for backend 'cuda', found " + quoted_word(name)});
  }
  if (name == "cpu") return cpu::make_cpu_backend(threads);
  if (name == "truth") return reference::make_truth_backend(threads);
  if (name == "cuda") {
#if defined(FP8LAB_HAVE_CUDA)
    using cuda::GemmImplementation, cuda::Launches;
    // What the host computes beside the device.
    if (checked_threads(threads, "threads") > 0) omp_set_num_threads(threads);
    return cuda::make_cuda_backend(
        gemm == "own" ? GemmImplementation::own : GemmImplementation::cublaslt,
        graphs ? Launches::graphs : Launches::single);
#else
    throw InputError(
        {.reason = "backend 'cuda' is not available: this build has no CUDA backend; use 'cpu'"});
#endif
  }
  throw InputError({.noun = "unknown backend",
                    .key = name,
                    .nearest = did_you_mean(name, "cpu, truth, cuda"),
                    .accepted = "cpu, truth and cuda"});
}

std::unique_ptr<Backend> make_guest_backend(const std::string& name, int index, int threads) {
#if defined(FP8LAB_HAVE_CUDA)
  if (name == "cuda") {
    return std::make_unique<cuda::CudaBackend>(index, cuda::Launches::single);
  }
#endif
  if (name != "cuda" && index != 0) {
    throw Error("backend '" + name + "' has one device, 0; found " + std::to_string(index));
  }
  return make_backend(name, threads);
}

void enqueue_on([[maybe_unused]] Backend& backend, [[maybe_unused]] void* stream) {
#if defined(FP8LAB_HAVE_CUDA)
  if (auto* device = dynamic_cast<cuda::CudaBackend*>(&backend)) device->enqueue_on(stream);
#endif
}

std::string gemm_algorithm([[maybe_unused]] const Backend& backend) {
#if defined(FP8LAB_HAVE_CUDA)
  if (const auto* cublaslt = dynamic_cast<const cuda::CublasLtBackend*>(&backend)) {
    return cublaslt->gemm_algorithm();
  }
#endif
  return {};
}

}  // namespace fp8lab
