// The model and optimizer operations on the device, in the order of emulation/cpu/operations.hpp.
//
// Each function launches on context.stream() and returns; it throws Error for shapes and types that
// do not fit, with the words of the CPU backend, and sets a Fault for bad data that only the device
// sees. Results are those of the CPU function of the same name bit for bit.
#pragma once

#include <cstdint>

#include "emulation/api/backend.hpp"
#include "kernels/context.hpp"

namespace fp8lab::cuda {

void embedding_forward(Context& context, const TensorView& tokens, const TensorView& table,
                       const TensorView& out);
void embedding_backward(Context& context, const TensorView& tokens, const TensorView& dout,
                        const TensorView& dtable);
void rmsnorm_forward(Context& context, const TensorView& x, const TensorView& weight, float epsilon,
                     const TensorView& y, const TensorView& rstd);
void rmsnorm_backward(Context& context, const TensorView& dy, const TensorView& x,
                      const TensorView& weight, const TensorView& rstd, const TensorView& dx,
                      const TensorView& dweight);
void add(Context& context, const TensorView& a, const TensorView& b, const TensorView& sum);
void swiglu_forward(Context& context, const TensorView& gate_up, const TensorView& out);
void swiglu_backward(Context& context, const TensorView& gate_up, const TensorView& dout,
                     const TensorView& dgate_up);
void copy(Context& context, const TensorView& source, const TensorView& destination);
void bias_backward(Context& context, const TensorView& dy, const TensorView& dbias);
void rope(Context& context, const TensorView& x, const TensorView& positions,
          const TensorView& cosine, const TensorView& sine, std::int64_t head_dim, bool inverse);
void attention_forward(Context& context, const AttentionShape& shape, const TensorView& q,
                       const TensorView& k, const TensorView& v, const TensorView& document_start,
                       const TensorView& out, const TensorView& lse);
void attention_cached(Context& context, const AttentionShape& shape, const TensorView& q,
                      const TensorView& k, const TensorView& v, const TensorView& query_start,
                      const TensorView& cached, const TensorView& k_cache,
                      const TensorView& v_cache, const TensorView& out);
void attention_backward(Context& context, const AttentionShape& shape, const TensorView& q,
                        const TensorView& k, const TensorView& v, const TensorView& document_start,
                        const TensorView& out, const TensorView& lse, const TensorView& dout,
                        const TensorView& dq, const TensorView& dk, const TensorView& dv);
void cross_entropy(Context& context, const TensorView& logits, const TensorView& targets,
                   const TensorView& weights, const TensorView& scalars,
                   const TensorView& token_loss, const TensorView& dlogits);
void argmax(Context& context, const TensorView& logits, const TensorView& out);
void accumulate_square_sum(Context& context, const TensorView& gradient, const TensorView& scalars);
void begin_update(Context& context, const AdamWSpec& spec, const TensorView& scalars);
void adamw(Context& context, const AdamWSpec& spec, const TensorView& scalars, float decay_mask,
           const AdamWTensors& tensors);

}  // namespace fp8lab::cuda
