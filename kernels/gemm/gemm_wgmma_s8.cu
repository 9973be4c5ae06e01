#include "kernels/gemm/gemm_wgmma.cuh"

namespace fp8lab::cuda {

template void launch_one_chain<WgmmaTypes::s8, WgmmaOrders::k_k>(Context&, const WgmmaGemm&,
                                                                 const Problem&);

}  // namespace fp8lab::cuda
