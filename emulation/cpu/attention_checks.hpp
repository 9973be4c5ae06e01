// Argument checks of attention and its two constants, shared by every backend that computes it.
#pragma once

#include <cstdint>
#include <string_view>

#include "emulation/api/backend.hpp"

namespace fp8lab::cpu {

/// Factors that depend on the head dimension D only.
struct AttentionFactors {
  float inverse_root = 0.0f;  ///< 1 / sqrt(D)
  float scale = 0.0f;         ///< inverse_root * log2(e)
};
AttentionFactors attention_factors(std::int64_t head_dim);

/// Shape and tensors of attention_forward (api/backend.hpp); throws Error. The values of
/// document_start are data and not looked at. `operation` is the name that messages begin with.
void check_attention_forward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                             const TensorView& v, const TensorView& document_start,
                             const TensorView& out, const TensorView& lse,
                             std::string_view operation = "attention_forward");

/// As check_attention_forward, for attention_cached; the values of query_start and cached are data.
void check_attention_cached(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                            const TensorView& v, const TensorView& query_start,
                            const TensorView& cached, const TensorView& k_cache,
                            const TensorView& v_cache, const TensorView& out);

/// As check_attention_forward, for attention_backward.
void check_attention_backward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                              const TensorView& v, const TensorView& document_start,
                              const TensorView& out, const TensorView& lse, const TensorView& dout,
                              const TensorView& dq, const TensorView& dk, const TensorView& dv);

}  // namespace fp8lab::cpu
