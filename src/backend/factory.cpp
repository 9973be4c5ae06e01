#include "src/backend/factory.hpp"

#include "emulation/api/error.hpp"
#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/cpu/truth_backend.hpp"
#if defined(FP8LAB_HAVE_CUDA)
#include "kernels/cuda_backend.hpp"
#endif

namespace fp8lab {

std::unique_ptr<Backend> make_backend(const std::string& name, int threads) {
  if (name == "cpu") return cpu::make_cpu_backend(threads);
  if (name == "truth") return cpu::make_truth_backend(threads);
  if (name == "cuda") {
#if defined(FP8LAB_HAVE_CUDA)
    return cuda::make_cuda_backend();
#else
    throw Error("backend 'cuda' is not available: this build has no CUDA backend; use 'cpu'");
#endif
  }
  throw Error("unknown backend '" + name + "'; accepted are cpu, truth and cuda");
}

}  // namespace fp8lab
