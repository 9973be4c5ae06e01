#include "emulation/api/error.hpp"
#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/target.hpp"

namespace fp8lab::cpu {

namespace isa_portable {
extern const QuantizeKernels kQuantize;
}
#if defined(__x86_64__)
namespace isa_avx2 {
extern const QuantizeKernels kQuantize;
}
namespace isa_avx512 {
extern const QuantizeKernels kQuantize;
}
namespace isa_avx512_fp16 {
extern const QuantizeKernels kQuantize;
}
#endif

const QuantizeKernels& quantize_kernels() {
  switch (active_target()) {
    case SimdTarget::portable: return isa_portable::kQuantize;
#if defined(__x86_64__)
    case SimdTarget::avx2: return isa_avx2::kQuantize;
    case SimdTarget::avx512: return isa_avx512::kQuantize;
    case SimdTarget::avx512_fp16: return isa_avx512_fp16::kQuantize;
#else
    default: break;
#endif
  }
  FP8LAB_ASSERT(false);
  return isa_portable::kQuantize;
}

}  // namespace fp8lab::cpu
