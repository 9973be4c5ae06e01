// Attention backward: dV, dK and dQ in the order of operations.hpp.
#include <type_traits>
#include <vector>

#include <omp.h>

#include "emulation/cpu/attention/attention_chain.hpp"
#include "emulation/cpu/attention/attention_tiles.hpp"
#include "emulation/cpu/attention/backward_tasks.hpp"
#include "emulation/cpu/operations.hpp"

namespace fp8lab::cpu {

std::vector<BackwardTask> plan_backward(const AttentionProblem& problem) {
  const AttentionShape& shape = problem.shape;
  const Range kv_tiles{0, problem.kv_tiles()};
  const Range q_tiles{0, problem.q_tiles()};
  const bool whole = shape.batch * shape.kv_heads >= omp_get_max_threads();
  std::vector<BackwardTask> tasks;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
      const Range heads{kv_head * problem.group(), (kv_head + 1) * problem.group()};
      if (whole) {
        tasks.push_back({b, kv_head, heads, kv_tiles, q_tiles, true, true});
        continue;
      }
      for (std::int64_t tile = 0; tile < kv_tiles.last; ++tile) {
        tasks.push_back({b, kv_head, heads, {tile, tile + 1}, q_tiles, true, false});
      }
      for (std::int64_t head = heads.first; head < heads.last; ++head) {
        for (std::int64_t tile = 0; tile < q_tiles.last; ++tile) {
          tasks.push_back({b, kv_head, {head, head + 1}, kv_tiles, {tile, tile + 1}, false, true});
        }
      }
    }
  }
  return tasks;
}

namespace {

struct BackwardTensors {
  TensorView q, k, v, lse, dout, dq, dk, dv;
  const float* delta = nullptr;  ///< (heads, T)
};

template <class T>
class BackwardPass {
 public:
  BackwardPass(const AttentionProblem& problem, const BackwardTensors& tensors)
      : problem_(problem),
        shape_(problem.shape),
        t_(tensors),
        dk_(size(shape_.kv_tile, shape_.head_dim)),
        dv_(size(shape_.kv_tile, shape_.head_dim)),
        scores_(size(kRowBlock, shape_.kv_tile)),
        dprobs_(size(kRowBlock, shape_.kv_tile)),
        row_(size(2, shape_.kv_tile)),
        p_(size(shape_.q_tile, shape_.kv_tile)),
        ds_(size(shape_.q_tile, shape_.kv_tile)) {}

  void run(const BackwardTask& task) {
    const std::int64_t width = task.q_tiles.count() * shape_.q_tile;
    if (task.queries) dq_.assign(size(task.heads.count() * width, shape_.head_dim), 0.0f);
    for (std::int64_t tile = task.kv_tiles.first; tile < task.kv_tiles.last; ++tile) {
      const Range keys = problem_.positions(tile, shape_.kv_tile);
      load_keys(task, keys);
      for (std::int64_t head = task.heads.first; head < task.heads.last; ++head) {
        for (std::int64_t q_tile = task.q_tiles.first; q_tile < task.q_tiles.last; ++q_tile) {
          const std::int64_t slot =
              (head - task.heads.first) * width + (q_tile - task.q_tiles.first) * shape_.q_tile;
          add_pair(task, head, problem_.positions(q_tile, shape_.q_tile), keys, slot);
        }
      }
      if (task.keys) {
        store(dk_.data(), problem_.factors.r, t_.dk, task.b, task.kv_head, keys);
        store(dv_.data(), 1.0f, t_.dv, task.b, task.kv_head, keys);
      }
    }
    if (task.queries) store_queries(task, width);
  }

 private:
  static std::size_t size(std::int64_t rows, std::int64_t cols) {
    return static_cast<std::size_t>(rows * cols);
  }

  void load_keys(const BackwardTask& task, const Range& keys) {
    const auto k = head_rows<T>(problem_, t_.k, task.kv_head, problem_.token(task.b, keys.first));
    const auto v = head_rows<T>(problem_, t_.v, task.kv_head, problem_.token(task.b, keys.first));
    keys_transposed_.load(k.transposed(), shape_.head_dim, keys.count());
    values_transposed_.load(v.transposed(), shape_.head_dim, keys.count());
    if (task.queries) keys_.load(k, keys.count(), shape_.head_dim);
    std::fill(dk_.begin(), dk_.end(), 0.0f);
    std::fill(dv_.begin(), dv_.end(), 0.0f);
  }

  /// Adds the pairs of one q tile and one kv tile to dK, dV and dQ.
  void add_pair(const BackwardTask& task, std::int64_t head, const Range& queries,
                const Range& keys, std::int64_t slot) {
    if (problem_.sequence(task.b).visible(queries, keys).empty()) return;
    // Queries of the tile that see keys, in whole row blocks: the summed range of dK and dV.
    Range active{queries.count(), 0};
    for (std::int64_t i = 0; i < queries.count(); i += kRowBlock) {
      const Range rows{i, std::min(i + kRowBlock, queries.count())};
      const Range seen =
          problem_.sequence(task.b).visible({queries.first + i, queries.first + rows.last}, keys);
      if (seen.empty()) {
        std::fill_n(p_.data() + i * shape_.kv_tile, rows.count() * shape_.kv_tile, T{});
        std::fill_n(ds_.data() + i * shape_.kv_tile, rows.count() * shape_.kv_tile, T{});
        continue;
      }
      active = {std::min(active.first, rows.first), rows.last};
      const Range columns{(seen.first - keys.first) / kAttentionGroup * kAttentionGroup,
                          seen.last - keys.first};
      score_block(task.b, head, queries.first, rows, keys, columns);
      if (task.queries) {
        chain_.multiply(
            Operand<T>{ds_.data() + i * shape_.kv_tile + columns.first, shape_.kv_tile, 1},
            rows.count(), keys_, columns, {0, shape_.head_dim},
            dq_.data() + (slot + i) * shape_.head_dim, shape_.head_dim);
      }
    }
    if (task.keys && !active.empty()) add_to_keys(task.b, head, queries, keys, active);
  }

  /// Computes P and dS of the rows `rows` of the q tile that starts at position `start`.
  void score_block(std::int64_t b, std::int64_t head, std::int64_t start, const Range& rows,
                   const Range& keys, const Range& columns) {
    const std::int64_t tile = shape_.kv_tile;
    std::fill(scores_.begin(), scores_.end(), 0.0f);
    std::fill(dprobs_.begin(), dprobs_.end(), 0.0f);
    const std::int64_t position = start + rows.first;
    chain_.multiply(head_rows<T>(problem_, t_.q, head, problem_.token(b, position)), rows.count(),
                    keys_transposed_, {0, shape_.head_dim}, columns, scores_.data() + columns.first,
                    tile);
    chain_.multiply(head_rows<T>(problem_, t_.dout, head, problem_.token(b, position)),
                    rows.count(), values_transposed_, {0, shape_.head_dim}, columns,
                    dprobs_.data() + columns.first, tile);
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      const std::int64_t i = position + row;
      const std::int64_t token = problem_.token(b, i);
      const Range seen = problem_.sequence(b).visible(i);
      ScoreGradientRow arguments{};
      arguments.scores = scores_.data() + row * tile;
      arguments.dprobs = dprobs_.data() + row * tile;
      arguments.first = std::max(seen.first, keys.first) - keys.first;
      arguments.last = std::min(seen.last, keys.last) - keys.first;
      arguments.tile = tile;
      arguments.scale = problem_.factors.scale;
      arguments.is_wide = std::is_same_v<T, float>;
      arguments.lse = t_.lse.row<float>(head)[token];
      arguments.delta = t_.delta[head * t_.lse.cols + token];
      float* dscores = row_.data() + tile;
      problem_.kernels->score_gradient(&arguments, row_.data(), dscores);
      to_operands(*problem_.kernels, row_.data(), tile, p_.data() + (rows.first + row) * tile);
      to_operands(*problem_.kernels, dscores, tile, ds_.data() + (rows.first + row) * tile);
    }
  }

  /// dV += P^T dO and dK += dS^T Q over the queries `active` of the tile `queries`.
  void add_to_keys(std::int64_t b, std::int64_t head, const Range& queries, const Range& keys,
                   const Range& active) {
    const std::int64_t d = shape_.head_dim;
    const std::int64_t offset = active.first * shape_.kv_tile;
    const std::int64_t position = queries.first + active.first;
    queries_.load(head_rows<T>(problem_, t_.dout, head, problem_.token(b, position)),
                  active.count(), d);
    chain_.multiply(Operand<T>{p_.data() + offset, 1, shape_.kv_tile}, keys.count(), queries_,
                    {0, active.count()}, {0, d}, dv_.data(), d);
    queries_.load(head_rows<T>(problem_, t_.q, head, problem_.token(b, position)), active.count(),
                  d);
    chain_.multiply(Operand<T>{ds_.data() + offset, 1, shape_.kv_tile}, keys.count(), queries_,
                    {0, active.count()}, {0, d}, dk_.data(), d);
  }

  /// Multiplies rows of `accumulator` by `factor` and stores them in the columns of `head`.
  void store(float* accumulator, float factor, const TensorView& view, std::int64_t b,
             std::int64_t head, const Range& positions) {
    const std::int64_t d = shape_.head_dim;
    for (std::int64_t i = 0; i < positions.count(); ++i) {
      float* row = accumulator + i * d;
      problem_.kernels->multiply(row, factor, d, row);
      write_row(*problem_.kernels, row, d, view, problem_.token(b, positions.first + i), head * d);
    }
  }

  void store_queries(const BackwardTask& task, std::int64_t width) {
    const Range positions{task.q_tiles.first * shape_.q_tile,
                          std::min(shape_.sequence, task.q_tiles.last * shape_.q_tile)};
    for (std::int64_t head = task.heads.first; head < task.heads.last; ++head) {
      store(dq_.data() + (head - task.heads.first) * width * shape_.head_dim, problem_.factors.r,
            t_.dq, task.b, head, positions);
    }
  }

  const AttentionProblem& problem_;
  const AttentionShape shape_;
  BackwardTensors t_;
  Chain<T> chain_;
  ChainTile<T> keys_transposed_;        ///< (D, keys)
  ChainTile<T> values_transposed_;      ///< (D, keys)
  ChainTile<T> keys_;                   ///< (keys, D)
  ChainTile<T> queries_;                ///< (queries, D) of dO or Q
  std::vector<float> dk_, dv_;          ///< (kv_tile, D)
  std::vector<float> dq_;               ///< (heads, q tiles * q_tile, D) of the task
  std::vector<float> scores_, dprobs_;  ///< (kRowBlock, kv_tile)
  std::vector<float> row_;              ///< probabilities and score gradients of one row
  std::vector<T> p_, ds_;               ///< (q_tile, kv_tile)
};

/// Returns delta (heads, T) = tree_sum_d(dout * out).
std::vector<float> row_deltas(const AttentionProblem& problem, const TensorView& out,
                              const TensorView& dout) {
  const AttentionShape& shape = problem.shape;
  const std::int64_t d = shape.head_dim;
  std::vector<float> delta(static_cast<std::size_t>(shape.heads * out.rows));
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(2 * out.cols));
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < out.rows; ++t) {
      const float* o = read_row(*problem.kernels, out, t, scratch.data());
      const float* g = read_row(*problem.kernels, dout, t, scratch.data() + out.cols);
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        delta[static_cast<std::size_t>(head * out.rows + t)] =
            problem.kernels->dot(g + head * d, o + head * d, d);
      }
    }
  }
  return delta;
}

template <class T>
void backward(const AttentionProblem& problem, const BackwardTensors& tensors) {
  const std::vector<BackwardTask> tasks = plan_backward(problem);
#pragma omp parallel
  {
    BackwardPass<T> pass(problem, tensors);
#pragma omp for schedule(static, 1)
    for (const BackwardTask& task : tasks) pass.run(task);
  }
}

}  // namespace

void run(const ops::AttentionBackward& op) {
  op.check();
  const AttentionProblem problem =
      make_attention_problem("attention_backward", op.shape, op.document_start);
  const std::vector<float> delta = row_deltas(problem, op.out, op.dout);
  const BackwardTensors tensors{op.q,  op.k,  op.v,  op.lse,      op.dout,
                                op.dq, op.dk, op.dv, delta.data()};
  if (op.q.dtype == DType::f32) {
    backward<float>(problem, tensors);
  } else {
    backward<std::uint16_t>(problem, tensors);
  }
}

}  // namespace fp8lab::cpu
