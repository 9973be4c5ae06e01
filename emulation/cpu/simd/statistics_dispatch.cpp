#include "emulation/api/error.hpp"
#include "emulation/cpu/simd/statistics_kernels.hpp"
#include "emulation/cpu/simd/target.hpp"

namespace fp8lab::cpu {

namespace isa_portable {
extern const StatisticsKernels kStatistics;
}
#if defined(__x86_64__)
namespace isa_avx2 {
extern const StatisticsKernels kStatistics;
}
namespace isa_avx512 {
extern const StatisticsKernels kStatistics;
}
namespace isa_avx512_fp16 {
extern const StatisticsKernels kStatistics;
}
#endif

const StatisticsKernels& statistics_kernels() {
  switch (active_target()) {
    case SimdTarget::portable: return isa_portable::kStatistics;
#if defined(__x86_64__)
    case SimdTarget::avx2: return isa_avx2::kStatistics;
    case SimdTarget::avx512: return isa_avx512::kStatistics;
    case SimdTarget::avx512_fp16: return isa_avx512_fp16::kStatistics;
#else
    default: break;
#endif
  }
  FP8LAB_ASSERT(false);
  return isa_portable::kStatistics;
}

}  // namespace fp8lab::cpu
