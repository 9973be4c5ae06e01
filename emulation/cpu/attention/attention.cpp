// Attention forward, with or without a cache: online softmax over kv tiles, in the order of
// operations.hpp.
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "emulation/cpu/attention/attention_chain.hpp"
#include "emulation/cpu/attention/attention_tiles.hpp"
#include "emulation/cpu/attention/cached_tasks.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/ops/checks.hpp"

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
  problem.factors = attention_factors(shape);
  problem.kernels = &pointwise_kernels();
  return problem;
}

std::vector<CachedTask> cached_tasks(std::string_view operation, const AttentionShape& shape,
                                     std::int64_t tokens, const TensorView& query_start,
                                     const TensorView& cached) {
  const std::int32_t* start = query_start.row<std::int32_t>(0);
  const std::int32_t* held = cached.row<std::int32_t>(0);
  const Checks checks(operation);
  checks.require(start[0] == 0 && start[shape.batch] == tokens,
                 "query_start must go from 0 to the " + std::to_string(tokens) + " new tokens");
  std::vector<CachedTask> tasks;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t count = std::int64_t{start[b + 1]} - start[b], length = held[b] + count;
    checks.require(count >= 0 && held[b] >= 0 && length <= shape.sequence,
                   std::to_string(count) + " new tokens after " + std::to_string(held[b]) +
                       " of sequence " + std::to_string(b) + " do not fit a cache of " +
                       std::to_string(shape.sequence));
    const AttentionSequence sequence{start[b] - held[b], b * shape.sequence, length, nullptr,
                                     &shape};
    for (std::int64_t i = held[b]; i < length; i += shape.q_tile) {
      tasks.push_back({sequence, {i, std::min(i + shape.q_tile, length)}});
    }
  }
  return tasks;
}

void append(const CachedTask& task, const TensorView& source, const TensorView& cache) {
  const std::size_t bytes = static_cast<std::size_t>(source.cols) * size_of(source.dtype);
  for (std::int64_t i = task.queries.first; i < task.queries.last; ++i) {
    const TensorView to = cache.row_range(task.sequence.key_row + i, 1);
    const TensorView from = source.row_range(task.sequence.query_row + i, 1);
    std::memcpy(to.data, from.data, bytes);
  }
}

namespace {

/// Computes the output rows of one (sequence, head, q tile) at a time; one object per thread. Does
/// not write `lse` if it is empty.
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
        sums_(static_cast<std::size_t>(problem.shape.q_tile)),
        accumulator_(static_cast<std::size_t>(problem.shape.q_tile * problem.shape.head_dim)),
        scores_(static_cast<std::size_t>(kRowBlock * problem.shape.kv_tile)),
        probabilities_(static_cast<std::size_t>(problem.shape.kv_tile)),
        operands_(static_cast<std::size_t>(kRowBlock * problem.shape.kv_tile)) {
    std::vector<T> ones(static_cast<std::size_t>(problem.shape.kv_tile));
    const std::vector<float> one(ones.size(), 1.0f);
    to_operands(*problem.kernels, one.data(), problem.shape.kv_tile, ones.data());
    ones_.load(Operand<T>{ones.data(), 1, 1}, problem.shape.kv_tile, 1);
  }

  /// Computes the output rows of up to q_tile queries.
  void run(const AttentionSequence& sequence, std::int64_t head, const Range& queries) {
    const AttentionShape& shape = problem_.shape;
    std::fill(states_.begin(), states_.end(), SoftmaxState{-__builtin_inff(), 0.0f});
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    std::fill(accumulator_.begin(), accumulator_.end(), 0.0f);
    for (std::int64_t key = 0; key < queries.last; key += shape.kv_tile) {
      const Range keys{key, std::min(sequence.length, key + shape.kv_tile)};
      if (sequence.visible(queries, keys).empty()) continue;
      const std::int64_t kv_head = head / problem_.group(), row = sequence.key_row + key;
      keys_.load(head_rows<T>(problem_, k_, kv_head, row).transposed(), shape.head_dim,
                 keys.count());
      values_.load(head_rows<T>(problem_, v_, kv_head, row), keys.count(), shape.head_dim);
      for (std::int64_t i = queries.first; i < queries.last; i += kRowBlock) {
        add_tile(sequence, head, {i, std::min(i + kRowBlock, queries.last)}, i - queries.first,
                 keys);
      }
    }
    finish(sequence, head, queries);
  }

 private:
  /// Adds the keys of one tile to the rows `queries`, which start at row `slot` of the q tile.
  void add_tile(const AttentionSequence& sequence, std::int64_t head, const Range& queries,
                std::int64_t slot, const Range& keys) {
    const AttentionShape& shape = problem_.shape;
    const Range seen = sequence.visible(queries, keys);
    if (seen.empty()) return;
    const std::int64_t first = (seen.first - keys.first) / kAttentionGroup * kAttentionGroup;
    const std::int64_t last = seen.last - keys.first;
    std::fill(scores_.begin(), scores_.end(), 0.0f);
    chain_.multiply(head_rows<T>(problem_, q_, head, sequence.query_row + queries.first),
                    queries.count(), keys_, {0, shape.head_dim}, {first, last},
                    scores_.data() + first, shape.kv_tile);
    for (std::int64_t row = 0; row < queries.count(); ++row) {
      add_row(sequence.visible(queries.first + row), slot + row, row, keys);
    }
    const Operand<T> weights{operands_.data() + first, shape.kv_tile, 1};
    chain_.multiply(weights, queries.count(), values_, {first, last}, {0, shape.head_dim},
                    accumulator_.data() + slot * shape.head_dim, shape.head_dim);
    chain_.multiply(weights, queries.count(), ones_, {first, last}, {0, 1}, sums_.data() + slot, 1);
  }

  /// Computes the softmax of row `row` of the score block, which is row `slot` of the q tile and
  /// sees the keys `seen`.
  void add_row(const Range& seen, std::int64_t slot, std::int64_t row, const Range& keys) {
    const AttentionShape& shape = problem_.shape;
    const PointwiseKernels& kernels = *problem_.kernels;
    T* operands = operands_.data() + row * shape.kv_tile;
    const std::int64_t first = std::max(seen.first, keys.first) - keys.first;
    const std::int64_t last = std::min(seen.last, keys.last) - keys.first;
    if (first >= last) {
      std::fill(operands, operands + shape.kv_tile, T{});
      return;
    }
    SoftmaxState& state = states_[static_cast<std::size_t>(slot)];
    kernels.softmax_row(scores_.data() + row * shape.kv_tile, first, last, shape.kv_tile,
                        problem_.factors.scale, std::is_same_v<T, float>, &state,
                        probabilities_.data());
    to_operands(kernels, probabilities_.data(), shape.kv_tile, operands);
    float* accumulator = accumulator_.data() + slot * shape.head_dim;
    kernels.multiply(accumulator, state.alpha, shape.head_dim, accumulator);
    sums_[static_cast<std::size_t>(slot)] *= state.alpha;
  }

  void finish(const AttentionSequence& sequence, std::int64_t head, const Range& queries) {
    const AttentionShape& shape = problem_.shape;
    const PointwiseKernels& kernels = *problem_.kernels;
    for (std::int64_t i = queries.first; i < queries.last; ++i) {
      const std::int64_t slot = i - queries.first;
      float* row = accumulator_.data() + slot * shape.head_dim;
      const std::int64_t token = sequence.query_row + i;
      const auto at = static_cast<std::size_t>(slot);
      const float lse =
          kernels.softmax_end(states_[at].maximum, sums_[at], row, shape.head_dim, row);
      if (!lse_.empty()) lse_.row<float>(head)[token] = lse;
      write_row(kernels, row, shape.head_dim, out_, token, head * shape.head_dim);
    }
  }

  const AttentionProblem& problem_;
  TensorView q_, k_, v_, out_, lse_;
  Chain<T> chain_;
  ChainTile<T> keys_;    ///< (D, keys)
  ChainTile<T> values_;  ///< (keys, D)
  ChainTile<T> ones_;    ///< (kv_tile, 1)
  std::vector<SoftmaxState> states_;
  std::vector<float> sums_;         ///< sums of weights, for each row of the q tile
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
      pass.run(problem.sequence(task / (shape.heads * tiles)), task / tiles % shape.heads,
               problem.positions(task % tiles, shape.q_tile));
    }
  }
}

template <class T>
void forward_cached(const AttentionProblem& problem, const std::vector<CachedTask>& tasks,
                    const TensorView& q, const TensorView& k_cache, const TensorView& v_cache,
                    const TensorView& out) {
  const std::int64_t heads = problem.shape.heads;
  const auto count = static_cast<std::int64_t>(tasks.size()) * heads;
#pragma omp parallel
  {
    ForwardPass<T> pass(problem, q, k_cache, v_cache, out, TensorView{});
#pragma omp for schedule(static, 1)
    for (std::int64_t i = 0; i < count; ++i) {
      const CachedTask& task = tasks[static_cast<std::size_t>(i / heads)];
      pass.run(task.sequence, i % heads, task.queries);
    }
  }
}

}  // namespace

void run(const ops::AttentionForward& op) {
  op.check();
  const AttentionProblem problem =
      make_attention_problem("attention_forward", op.shape, op.document_start);
  if (op.q.dtype == DType::f32) {
    forward<float>(problem, op.q, op.k, op.v, op.out, op.lse);
  } else {
    forward<std::uint16_t>(problem, op.q, op.k, op.v, op.out, op.lse);
  }
}

void run(const ops::AttentionCached& op) {
  op.check();
  const std::vector<CachedTask> tasks =
      cached_tasks("attention_cached", op.shape, op.q.rows, op.query_start, op.cached);
  for (const CachedTask& task : tasks) {
    append(task, op.k, op.k_cache);
    append(task, op.v, op.v_cache);
  }
  AttentionProblem problem;
  problem.shape = op.shape;
  problem.factors = attention_factors(op.shape);
  problem.kernels = &pointwise_kernels();
  if (op.q.dtype == DType::f32) {
    forward_cached<float>(problem, tasks, op.q, op.k_cache, op.v_cache, op.out);
  } else {
    forward_cached<std::uint16_t>(problem, tasks, op.q, op.k_cache, op.v_cache, op.out);
  }
}

}  // namespace fp8lab::cpu
