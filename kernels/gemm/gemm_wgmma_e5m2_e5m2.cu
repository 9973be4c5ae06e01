#include "kernels/gemm/gemm_wgmma.cuh"

namespace fp8lab::cuda {

template void launch_types<WgmmaTypes::e5m2_e5m2>(Context&, const WgmmaGemm&, const Problem&);

}  // namespace fp8lab::cuda
