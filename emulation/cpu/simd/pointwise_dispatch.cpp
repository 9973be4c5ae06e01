#include "emulation/api/error.hpp"
#include "emulation/cpu/simd/pointwise_kernels.hpp"
#include "emulation/cpu/simd/target.hpp"

namespace fp8lab::cpu {

namespace isa_portable {
extern const PointwiseKernels kPointwise;
}
#if defined(__x86_64__)
namespace isa_avx2 {
extern const PointwiseKernels kPointwise;
}
namespace isa_avx512 {
extern const PointwiseKernels kPointwise;
}
namespace isa_avx512_fp16 {
extern const PointwiseKernels kPointwise;
}
#endif

const PointwiseKernels& pointwise_kernels() {
  switch (active_target()) {
    case SimdTarget::portable: return isa_portable::kPointwise;
#if defined(__x86_64__)
    case SimdTarget::avx2: return isa_avx2::kPointwise;
    case SimdTarget::avx512: return isa_avx512::kPointwise;
    case SimdTarget::avx512_fp16: return isa_avx512_fp16::kPointwise;
#else
    default: break;
#endif
  }
  FP8LAB_ASSERT(false);
  return isa_portable::kPointwise;
}

}  // namespace fp8lab::cpu
