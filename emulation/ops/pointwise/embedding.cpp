#include "emulation/ops/pointwise/embedding.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

void EmbeddingForward::check() const {
  const Checks checks("embedding_forward");
  checks.activation("table", table, table.rows, table.cols);
  checks.activation("out", out, tokens.cols, table.cols);
  checks.vector("tokens", tokens, tokens.cols, {DType::i32});
}

void EmbeddingBackward::check() const {
  const Checks checks("embedding_backward");
  checks.tensor("dtable", dtable, dtable.rows, dtable.cols, {DType::f32});
  checks.activation("dout", dout, tokens.cols, dtable.cols);
  checks.vector("tokens", tokens, tokens.cols, {DType::i32});
}

}  // namespace fp8lab::ops
