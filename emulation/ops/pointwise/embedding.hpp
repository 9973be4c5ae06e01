// Look-up of the rows of a table by token.
#pragma once

#include "emulation/base/tensor_view.hpp"
#include "emulation/ops/cost.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// out (T, C) = table[tokens[t]], rounded to out's type; tokens (1, T) i32, table (V, C). Throws
/// Error for a token outside the table.
struct EmbeddingForward {
  static constexpr std::string_view kName = "embedding_forward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView tokens, table, out;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("tokens", tokens));
    visit(reads("table", table));
    visit(writes("out", out));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return 2 * elements(out); }
};

/// dtable (V, C) f32: for t ascending, dtable[tokens[t]][c] = dtable[tokens[t]][c] + dout[t][c].
struct EmbeddingBackward {
  static constexpr std::string_view kName = "embedding_backward";
  static constexpr WorkClass kClass = WorkClass::elementwise;

  TensorView tokens, dout, dtable;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("tokens", tokens));
    visit(reads("dout", dout));
    visit(updates("dtable", dtable));
  }
  void check() const;
  /// Elements read and written.
  double work() const { return 3 * elements(dout); }
};

}  // namespace fp8lab::ops
