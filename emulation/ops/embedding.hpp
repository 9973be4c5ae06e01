// Rows of a table by token.
#pragma once

#include "emulation/base/tensor_view.hpp"

namespace fp8lab::ops {

/// out (T, C) = table[tokens[t]], rounded to out's type; tokens (1, T) i32, table (V, C). Error for
/// a token outside the table.
struct EmbeddingForward {
  TensorView tokens, table, out;

  void check() const;
};

/// dtable (V, C) f32: for t ascending, dtable[tokens[t]][c] = dtable[tokens[t]][c] + dout[t][c].
struct EmbeddingBackward {
  TensorView tokens, dout, dtable;

  void check() const;
};

}  // namespace fp8lab::ops
