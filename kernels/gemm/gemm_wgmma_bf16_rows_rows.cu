#include "kernels/gemm/gemm_wgmma.cuh"

namespace fp8lab::cuda {

template void launch_one_chain<WgmmaTypes::bf16, WgmmaOrders::rows_rows>(Context&, const WgmmaGemm&,
                                                                         const Problem&);

}  // namespace fp8lab::cuda
