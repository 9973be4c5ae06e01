#include "kernels/gemm/gemm_wgmma.cuh"

namespace fp8lab::cuda {

template void launch_types<WgmmaTypes::e4m3_e4m3>(Context&, const WgmmaGemm&, const Problem&);

}  // namespace fp8lab::cuda
