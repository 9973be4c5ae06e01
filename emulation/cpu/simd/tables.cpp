// Selects every kernel table by the active target.
#include <simd_sets.hpp>

#include <algorithm>
#include <iterator>

#include "emulation/base/error.hpp"
#include "emulation/cpu/simd/gemm_kernels.hpp"
#include "emulation/cpu/simd/pointwise_kernels.hpp"
#include "emulation/cpu/simd/quantize_kernels.hpp"
#include "emulation/cpu/simd/statistics_kernels.hpp"
#include "emulation/cpu/simd/target.hpp"

namespace fp8lab::cpu {

#define FP8LAB_DECLARE_TABLES(isa)              \
  namespace isa_##isa {                         \
    extern const GemmKernels kGemm;             \
    extern const PointwiseKernels kPointwise;   \
    extern const QuantizeKernels kQuantize;     \
    extern const StatisticsKernels kStatistics; \
  }
FP8LAB_FOR_EACH_SIMD_SET(FP8LAB_DECLARE_TABLES)
#undef FP8LAB_DECLARE_TABLES

namespace {

struct Tables {
  SimdTarget target;
  const GemmKernels& gemm;
  const PointwiseKernels& pointwise;
  const QuantizeKernels& quantize;
  const StatisticsKernels& statistics;
};

#define FP8LAB_TABLES(isa)                                                         \
  {SimdTarget::isa, isa_##isa::kGemm, isa_##isa::kPointwise, isa_##isa::kQuantize, \
   isa_##isa::kStatistics},
const Tables kTables[] = {FP8LAB_FOR_EACH_SIMD_SET(FP8LAB_TABLES)};
#undef FP8LAB_TABLES

const Tables& active_tables() {
  const SimdTarget target = active_target();
  const auto* const found =
      std::find_if(std::begin(kTables), std::end(kTables),
                   [target](const Tables& tables) { return tables.target == target; });
  FP8LAB_ASSERT(found != std::end(kTables));
  return *found;
}

}  // namespace

const GemmKernels& gemm_kernels() { return active_tables().gemm; }
const PointwiseKernels& pointwise_kernels() { return active_tables().pointwise; }
const QuantizeKernels& quantize_kernels() { return active_tables().quantize; }
const StatisticsKernels& statistics_kernels() { return active_tables().statistics; }

}  // namespace fp8lab::cpu
