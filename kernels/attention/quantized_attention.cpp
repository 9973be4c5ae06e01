#include "kernels/plan/quantized_attention.hpp"

#include "emulation/base/error.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {

void run(Context&, const ops::QuantizedAttentionForward&) { throw Error(kNoQuantizedAttention); }
void run(Context&, const ops::QuantizedAttentionBackward&) { throw Error(kNoQuantizedAttention); }
void run(Context&, const ops::QuantizedAttentionCached&) { throw Error(kNoQuantizedAttention); }

}  // namespace fp8lab::cuda
