#include "emulation/api/error.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/cpu/simd/target.hpp"

namespace fp8lab::cpu {

namespace isa_portable {
extern const GemmKernels kGemm;
}
#if defined(__x86_64__)
namespace isa_avx2 {
extern const GemmKernels kGemm;
}
namespace isa_avx512 {
extern const GemmKernels kGemm;
}
namespace isa_avx512_fp16 {
extern const GemmKernels kGemm;
}
#endif

const GemmKernels& gemm_kernels() {
  switch (active_target()) {
    case SimdTarget::portable: return isa_portable::kGemm;
#if defined(__x86_64__)
    case SimdTarget::avx2: return isa_avx2::kGemm;
    case SimdTarget::avx512: return isa_avx512::kGemm;
    case SimdTarget::avx512_fp16: return isa_avx512_fp16::kGemm;
#else
    default: break;
#endif
  }
  FP8LAB_ASSERT(false);
  return isa_portable::kGemm;
}

}  // namespace fp8lab::cpu
