// Every kernel table is chosen by the active target.
#include "emulation/api/error.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/cpu/simd/pointwise_kernels.hpp"
#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/statistics_kernels.hpp"
#include "emulation/cpu/simd/target.hpp"

namespace fp8lab::cpu {

#define FP8LAB_DECLARE_TABLES(isa)            \
  namespace isa {                             \
  extern const GemmKernels kGemm;             \
  extern const PointwiseKernels kPointwise;   \
  extern const QuantizeKernels kQuantize;     \
  extern const StatisticsKernels kStatistics; \
  }
FP8LAB_DECLARE_TABLES(isa_portable)
#if defined(__x86_64__)
FP8LAB_DECLARE_TABLES(isa_avx2)
FP8LAB_DECLARE_TABLES(isa_avx512)
FP8LAB_DECLARE_TABLES(isa_avx512_fp16)
FP8LAB_DECLARE_TABLES(isa_avx512_amx)
#endif
#undef FP8LAB_DECLARE_TABLES

namespace {

struct Tables {
  const GemmKernels& gemm;
  const PointwiseKernels& pointwise;
  const QuantizeKernels& quantize;
  const StatisticsKernels& statistics;
};

Tables active_tables() {
#define FP8LAB_TABLES(isa) \
  Tables { isa::kGemm, isa::kPointwise, isa::kQuantize, isa::kStatistics }
  switch (active_target()) {
    case SimdTarget::portable: return FP8LAB_TABLES(isa_portable);
#if defined(__x86_64__)
    case SimdTarget::avx2: return FP8LAB_TABLES(isa_avx2);
    case SimdTarget::avx512: return FP8LAB_TABLES(isa_avx512);
    case SimdTarget::avx512_fp16: return FP8LAB_TABLES(isa_avx512_fp16);
    case SimdTarget::avx512_amx: return FP8LAB_TABLES(isa_avx512_amx);
#else
    default: break;
#endif
  }
  FP8LAB_ASSERT(false);
  return FP8LAB_TABLES(isa_portable);
#undef FP8LAB_TABLES
}

}  // namespace

const GemmKernels& gemm_kernels() { return active_tables().gemm; }
const PointwiseKernels& pointwise_kernels() { return active_tables().pointwise; }
const QuantizeKernels& quantize_kernels() { return active_tables().quantize; }
const StatisticsKernels& statistics_kernels() { return active_tables().statistics; }

}  // namespace fp8lab::cpu
