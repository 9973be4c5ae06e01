// Refusals of the model and optimizer operations: one function for each, called by the CPU and the
// CUDA implementation, so that both refuse with the same words.
//
// Each takes the arguments of the operation of the same name (operations.hpp) and throws Error for
// a tensor that is missing or whose type, shape or layout does not fit. Data is not read: what
// tokens, targets and positions hold is checked where they lie.
#pragma once

#include <cstdint>

#include "emulation/api/backend.hpp"
#include "emulation/api/tensor_view.hpp"

namespace fp8lab::cpu {

void check_embedding_forward(const TensorView& tokens, const TensorView& table,
                             const TensorView& out);
void check_embedding_backward(const TensorView& tokens, const TensorView& dout,
                              const TensorView& dtable);
void check_rmsnorm_forward(const TensorView& x, const TensorView& weight, const TensorView& y,
                           const TensorView& rstd);
void check_rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                            const TensorView& rstd, const TensorView& dx,
                            const TensorView& dweight);
void check_add(const TensorView& a, const TensorView& b, const TensorView& sum);
void check_swiglu_forward(const TensorView& gate_up, const TensorView& out);
void check_swiglu_backward(const TensorView& gate_up, const TensorView& dout,
                           const TensorView& dgate_up);
void check_copy(const TensorView& source, const TensorView& destination);
void check_bias_backward(const TensorView& dy, const TensorView& dbias);
void check_rope(const TensorView& x, const TensorView& positions, const TensorView& cosine,
                const TensorView& sine, std::int64_t head_dim);
void check_cross_entropy(const TensorView& logits, const TensorView& targets,
                         const TensorView& weights, const TensorView& scalars,
                         const TensorView& token_loss, const TensorView& dlogits);
void check_argmax(const TensorView& logits, const TensorView& out);
void check_accumulate_square_sum(const TensorView& gradient, const TensorView& scalars);
void check_begin_update(const TensorView& scalars);
void check_adamw(const TensorView& scalars, const AdamWTensors& tensors);

}  // namespace fp8lab::cpu
