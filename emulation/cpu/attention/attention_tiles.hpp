// Parts that both attention passes share: the problem, visibility, and operands of chains on tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "emulation/backend.hpp"
#include "emulation/cpu/row_access.hpp"

namespace fp8lab::cpu {

/// Rows of queries that share one range of keys when masked work is skipped; no effect on bits.
inline constexpr std::int64_t kRowBlock = 16;

/// Half-open range.
struct Range {
  std::int64_t first = 0;
  std::int64_t last = 0;
  bool empty() const { return first >= last; }
  std::int64_t count() const { return last - first; }
};

/// The tokens of one sequence: its positions [0, length) lie in consecutive rows.
struct AttentionSequence {
  std::int64_t query_row = 0;  ///< row of the query at position 0, present or not
  std::int64_t key_row = 0;    ///< row of the key at position 0
  std::int64_t length = 0;
  const std::int32_t* document_start = nullptr;  ///< by position; null: one document
  const AttentionShape* shape = nullptr;         ///< its window limits the keys

  /// Returns the keys that query `i` sees.
  Range visible(std::int64_t i) const {
    return {shape->first_key(document_start == nullptr ? 0 : document_start[i], i), i + 1};
  }
  /// Returns the smallest range that holds every key seen by some query of
  /// `queries`, clipped to `keys`.
  Range visible(const Range& queries, const Range& keys) const {
    std::int64_t first = queries.last;
    for (std::int64_t i = queries.first; i < queries.last; ++i) {
      first = std::min(first, visible(i).first);
    }
    return {std::max(first, keys.first), std::min(queries.last, keys.last)};
  }
};

/// One attention call: shape, constants, and the starts of its documents.
struct AttentionProblem {
  AttentionShape shape;
  const std::int32_t* document_start = nullptr;
  AttentionFactors factors;
  const PointwiseKernels* kernels = nullptr;

  std::int64_t q_tiles() const { return (shape.sequence + shape.q_tile - 1) / shape.q_tile; }
  std::int64_t kv_tiles() const { return (shape.sequence + shape.kv_tile - 1) / shape.kv_tile; }
  std::int64_t group() const { return shape.heads / shape.kv_heads; }
  /// Returns the row of position `i` of sequence `b` in the (T, ..) matrices.
  std::int64_t token(std::int64_t b, std::int64_t i) const { return b * shape.sequence + i; }

  /// Returns the positions of tile `tile`.
  Range positions(std::int64_t tile, std::int64_t width) const {
    return {tile * width, std::min(shape.sequence, (tile + 1) * width)};
  }
  AttentionSequence sequence(std::int64_t b) const {
    return {token(b, 0), token(b, 0), shape.sequence, document_start + token(b, 0), &shape};
  }
};

/// Collects the checked arguments; throws Error for a document_start after its token.
AttentionProblem make_attention_problem(std::string_view operation, const AttentionShape& shape,
                                        const TensorView& document_start);

/// A matrix operand of a chain, with any strides: element (i, j) is
/// data[i * row_stride + j * col_stride].
template <class T>
struct Operand {
  const T* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  Operand transposed() const { return {data, col_stride, row_stride}; }
};

/// Returns the rows of head `head` from `row` on.
template <class T>
Operand<T> head_rows(const AttentionProblem& problem, const TensorView& view, std::int64_t head,
                     std::int64_t row) {
  return {view.row<const T>(row) + head * problem.shape.head_dim, view.row_stride, 1};
}

/// Rounds a row of f32 values to the operand type.
inline void to_operands(const PointwiseKernels& kernels, const float* values, std::int64_t n,
                        std::uint16_t* operands) {
  kernels.narrow(values, n, operands);
}
inline void to_operands(const PointwiseKernels&, const float* values, std::int64_t n,
                        float* operands) {
  std::copy(values, values + n, operands);
}

}  // namespace fp8lab::cpu
