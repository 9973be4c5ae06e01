// Attention on operands, which are not quantized here.
#include "emulation/reference/truth/operations.hpp"

namespace fp8lab::truth {

void run(const ops::QuantizedAttentionForward& op) {
  run(ops::AttentionForward{.shape = op.shape,
                            .q = op.q.codes,
                            .k = op.k.codes,
                            .v = op.v.codes,
                            .document_start = op.document_start,
                            .out = op.out,
                            .lse = op.lse});
}

void run(const ops::QuantizedAttentionBackward& op) {
  run(ops::AttentionBackward{.shape = op.shape,
                             .q = op.q.codes,
                             .k = op.k.codes,
                             .v = op.v.codes,
                             .document_start = op.document_start,
                             .out = op.out,
                             .lse = op.lse,
                             .dout = op.dout.codes,
                             .dq = op.dq,
                             .dk = op.dk,
                             .dv = op.dv});
}

void run(const ops::QuantizedAttentionCached& op) {
  run(ops::AttentionCached{.shape = op.shape,
                           .q = op.q.codes,
                           .k = op.k.codes,
                           .v = op.v.codes,
                           .query_start = op.query_start,
                           .cached = op.cached,
                           .k_cache = op.k_cache,
                           .v_cache = op.v_cache,
                           .out = op.out});
}

}  // namespace fp8lab::truth
