#include "emulation/base/error.hpp"
#include "kernels/gemm/gemm_wgmma.cuh"

namespace fp8lab::cuda {
namespace {

template <numerics::ScaleOrder kOrder>
void launch(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  launch_plan<Plan<WgmmaTypes::bf16, kOrder, false, Chains::any_length, 2, kScaledTileN>>(context,
                                                                                          gemm, p);
}

}  // namespace

void launch_scaled_bf16(Context& context, const WgmmaGemm& gemm, const Problem& p) {
  using numerics::ScaleOrder;
  switch (gemm.order) {
    case ScaleOrder::b_then_a: return launch<ScaleOrder::b_then_a>(context, gemm, p);
    case ScaleOrder::a_then_b: return launch<ScaleOrder::a_then_b>(context, gemm, p);
    case ScaleOrder::product_first: return launch<ScaleOrder::product_first>(context, gemm, p);
    default: FP8LAB_ASSERT(false);
  }
}

}  // namespace fp8lab::cuda
