// Attention forward: online softmax over kv tiles, in the order of operations.hpp.
#include <string>
#include <vector>

#include "emulation/cpu/attention_chain.hpp"
#include "emulation/cpu/attention_tiles.hpp"
#include "emulation/cpu/checks.hpp"
#include "emulation/cpu/operations.hpp"

namespace fp8lab::cpu {

AttentionProblem make_attention_problem(std::string_view operation, const AttentionShape& shape,
                                        const TensorView& document_start) {
  AttentionProblem problem;
  problem.shape = shape;
  problem.document_start = document_start.row<std::int32_t>(0);
  for (std::int64_t t = 0; t < document_start.cols; ++t) {
    const std::int64_t start = problem.document_start[t];
    if (start < 0 || start > t % shape.sequence) {
      Checks(operation).fail("document_start " + std::to_string(start) + " of token " +
                             std::to_string(t) + " is not in [0, " +
                             std::to_string(t % shape.sequence) + "]");
    }
  }
  problem.factors = attention_factors(shape.head_dim);
  problem.kernels = &pointwise_kernels();
  return problem;
}

namespace {

/// Computes the output rows of one (sequence, head, q tile) at a time; one object per thread.
template <class T>
class ForwardPass {
 public:
  ForwardPass(const AttentionProblem& problem, const TensorView& q, const TensorView& k,
              const TensorView& v, const TensorView& out, const TensorView& lse)
      : problem_(problem),
        q_(q),
        k_(k),
        v_(v),
        out_(out),
        lse_(lse),
        states_(static_cast<std::size_t>(problem.shape.q_tile)),
        accumulator_(static_cast<std::size_t>(problem.shape.q_tile * problem.shape.head_dim)),
        scores_(static_cast<std::size_t>(kRowBlock * problem.shape.kv_tile)),
        probabilities_(static_cast<std::size_t>(problem.shape.kv_tile)),
        operands_(static_cast<std::size_t>(kRowBlock * problem.shape.kv_tile)) {}

  void run(std::int64_t b, std::int64_t head, std::int64_t q_tile) {
    const AttentionShape& shape = problem_.shape;
    const Range queries = problem_.positions(q_tile, shape.q_tile);
    std::fill(states_.begin(), states_.end(), SoftmaxState{-__builtin_inff(), 0.0f, 0.0f});
    std::fill(accumulator_.begin(), accumulator_.end(), 0.0f);
    for (std::int64_t tile = 0; tile < problem_.kv_tiles(); ++tile) {
      const Range keys = problem_.positions(tile, shape.kv_tile);
      if (problem_.visible(b, queries, keys).empty()) continue;
      keys_.load(head_rows<T>(problem_, k_, head / problem_.group(), b, keys.first).transposed(),
                 shape.head_dim, keys.count());
      values_.load(head_rows<T>(problem_, v_, head / problem_.group(), b, keys.first), keys.count(),
                   shape.head_dim);
      for (std::int64_t i = queries.first; i < queries.last; i += kRowBlock) {
        add_tile(b, head, {i, std::min(i + kRowBlock, queries.last)}, i - queries.first, keys);
      }
    }
    finish(b, head, queries);
  }

 private:
  /// Brings the keys of one tile into the rows `queries`, which start at row `slot` of the q tile.
  void add_tile(std::int64_t b, std::int64_t head, const Range& queries, std::int64_t slot,
                const Range& keys) {
    const AttentionShape& shape = problem_.shape;
    const Range seen = problem_.visible(b, queries, keys);
    if (seen.empty()) return;
    const std::int64_t first = (seen.first - keys.first) / kAttentionGroup * kAttentionGroup;
    const std::int64_t last = seen.last - keys.first;
    std::fill(scores_.begin(), scores_.end(), 0.0f);
    chain_.multiply(head_rows<T>(problem_, q_, head, b, queries.first), queries.count(), keys_,
                    {0, shape.head_dim}, {first, last}, scores_.data() + first, shape.kv_tile);
    for (std::int64_t row = 0; row < queries.count(); ++row) {
      add_row(b, queries.first + row, slot + row, row, keys);
    }
    chain_.multiply(Operand<T>{operands_.data() + first, shape.kv_tile, 1}, queries.count(),
                    values_, {first, last}, {0, shape.head_dim},
                    accumulator_.data() + slot * shape.head_dim, shape.head_dim);
  }

  /// Softmax of row `row` of the score block: query `i`, row `slot` of the q tile.
  void add_row(std::int64_t b, std::int64_t i, std::int64_t slot, std::int64_t row,
               const Range& keys) {
    const AttentionShape& shape = problem_.shape;
    const PointwiseKernels& kernels = *problem_.kernels;
    T* operands = operands_.data() + row * shape.kv_tile;
    const Range seen = problem_.visible(b, i);
    const std::int64_t first = std::max(seen.first, keys.first) - keys.first;
    const std::int64_t last = std::min(seen.last, keys.last) - keys.first;
    if (first >= last) {
      std::fill(operands, operands + shape.kv_tile, T{});
      return;
    }
    SoftmaxState& state = states_[static_cast<std::size_t>(slot)];
    kernels.softmax_row(scores_.data() + row * shape.kv_tile, first, last, shape.kv_tile,
                        problem_.factors.scale, &state, probabilities_.data());
    to_operands(kernels, probabilities_.data(), shape.kv_tile, operands);
    float* accumulator = accumulator_.data() + slot * shape.head_dim;
    kernels.multiply(accumulator, state.alpha, shape.head_dim, accumulator);
  }

  void finish(std::int64_t b, std::int64_t head, const Range& queries) {
    const AttentionShape& shape = problem_.shape;
    const PointwiseKernels& kernels = *problem_.kernels;
    for (std::int64_t i = queries.first; i < queries.last; ++i) {
      const std::int64_t slot = i - queries.first;
      float* row = accumulator_.data() + slot * shape.head_dim;
      const std::int64_t token = problem_.token(b, i);
      lse_.row<float>(head)[token] =
          kernels.softmax_end(&states_[static_cast<std::size_t>(slot)], row, shape.head_dim, row);
      write_row(kernels, row, shape.head_dim, out_, token, head * shape.head_dim);
    }
  }

  const AttentionProblem& problem_;
  TensorView q_, k_, v_, out_, lse_;
  Chain<T> chain_;
  ChainTile<T> keys_;    ///< (D, keys)
  ChainTile<T> values_;  ///< (keys, D)
  std::vector<SoftmaxState> states_;
  std::vector<float> accumulator_;  ///< (q_tile, D)
  std::vector<float> scores_;       ///< (kRowBlock, kv_tile)
  std::vector<float> probabilities_;
  std::vector<T> operands_;  ///< (kRowBlock, kv_tile)
};

template <class T>
void forward(const AttentionProblem& problem, const TensorView& q, const TensorView& k,
             const TensorView& v, const TensorView& out, const TensorView& lse) {
  const AttentionShape& shape = problem.shape;
  const std::int64_t tiles = problem.q_tiles();
#pragma omp parallel
  {
    ForwardPass<T> pass(problem, q, k, v, out, lse);
#pragma omp for schedule(static, 1)
    for (std::int64_t task = 0; task < shape.batch * shape.heads * tiles; ++task) {
      pass.run(task / (shape.heads * tiles), task / tiles % shape.heads, task % tiles);
    }
  }
}

}  // namespace

void attention_forward(const AttentionShape& shape, const TensorView& q, const TensorView& k,
                       const TensorView& v, const TensorView& document_start, const TensorView& out,
                       const TensorView& lse) {
  check_attention_forward(shape, q, k, v, document_start, out, lse);
  const AttentionProblem problem =
      make_attention_problem("attention_forward", shape, document_start);
  if (q.dtype == DType::f32) {
    forward<float>(problem, q, k, v, out, lse);
  } else {
    forward<std::uint16_t>(problem, q, k, v, out, lse);
  }
}

}  // namespace fp8lab::cpu
