// Backward attention on quantized operands.
#include <algorithm>
#include <vector>

#include <omp.h>

#include "emulation/cpu/attention/backward_tasks.hpp"
#include "emulation/cpu/attention/quantized_chain.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::bits_float;
using numerics::float_bits;

/// Returns the largest magnitude, as bits, the canonical ones for NaN.
std::uint32_t amax_bits(const std::vector<float>& values, std::int64_t count) {
  std::uint32_t amax = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    amax = std::max(amax, float_bits(values[static_cast<std::size_t>(i)]) & 0x7FFFFFFFu);
  }
  return amax > numerics::kF32Infinity ? numerics::kF32NaN : amax;
}

template <class T>
class QuantizedBackward {
 public:
  QuantizedBackward(const AttentionProblem& problem, const ops::QuantizedAttentionBackward& op,
                    const float* delta)
      : problem_(problem),
        shape_(problem.shape),
        op_(op),
        delta_(delta),
        q_(op.q, shape_.head_dim),
        k_(op.k, shape_.head_dim),
        v_(op.v, shape_.head_dim),
        dout_(op.dout, shape_.head_dim),
        p_quantizer_(op.p),
        ds_quantizer_(op.ds),
        p_scale_(p_quantizer_.fixed_scale()),
        ds_scale_(op.ds_state.empty() ? ds_quantizer_.fixed_scale()
                                      : ds_quantizer_.delayed_scale(op.ds_state)),
        p_(p_quantizer_, shape_.q_tile, shape_.kv_tile),
        ds_(ds_quantizer_, shape_.q_tile, shape_.kv_tile),
        dk_(size(shape_.kv_tile, shape_.head_dim)),
        dv_(size(shape_.kv_tile, shape_.head_dim)),
        scores_(size(kRowBlock, shape_.kv_tile)),
        dprobs_(size(kRowBlock, shape_.kv_tile)),
        weights_(size(kRowBlock, shape_.kv_tile)),
        dscores_(size(shape_.q_tile, shape_.kv_tile)) {}

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
        store(dk_.data(), problem_.factors.r, op_.dk, task.b, task.kv_head, keys);
        store(dv_.data(), 1.0f, op_.dv, task.b, task.kv_head, keys);
      }
    }
    if (task.queries) store_queries(task, width);
  }

  /// The amax of dS so far, as bits.
  std::uint32_t amax() const { return amax_; }

 private:
  static std::size_t size(std::int64_t rows, std::int64_t cols) {
    return static_cast<std::size_t>(rows * cols);
  }

  void load_keys(const BackwardTask& task, const Range& keys) {
    const std::int64_t row = problem_.token(task.b, keys.first), d = shape_.head_dim;
    const OperandPart<T> k = k_.rows(task.kv_head, row), v = v_.rows(task.kv_head, row);
    keys_transposed_.load(q_.format(), k.transposed(), d, keys.count());
    values_transposed_.load(dout_.format(), v.transposed(), d, keys.count());
    if (task.queries) keys_.load(ds_quantizer_.format(), k, keys.count(), d);
    k_scale_ = k_.scale(row, task.kv_head);
    v_scale_ = v_.scale(row, task.kv_head);
    std::fill(dk_.begin(), dk_.end(), 0.0f);
    std::fill(dv_.begin(), dv_.end(), 0.0f);
  }

  /// Returns the keys of a tile that a block of rows sees, in whole groups from its first one.
  static Range columns_of(const Range& seen, const Range& keys) {
    return {(seen.first - keys.first) / kFp8AttentionGroup * kFp8AttentionGroup,
            seen.last - keys.first};
  }

  /// Adds the pairs of one q tile and one kv tile to dK, dV and dQ.
  void add_pair(const BackwardTask& task, std::int64_t head, const Range& queries,
                const Range& keys, std::int64_t slot) {
    const AttentionSequence sequence = problem_.sequence(task.b);
    if (sequence.visible(queries, keys).empty()) return;
    // Queries of the tile that see keys, in whole row blocks: the summed range of dK and dV.
    Range active{queries.count(), 0};
    for (std::int64_t i = 0; i < queries.count(); i += kRowBlock) {
      const Range rows{i, std::min(i + kRowBlock, queries.count())};
      const Range seen = sequence.visible({queries.first + i, queries.first + rows.last}, keys);
      float* const dscores = dscores_.data() + i * shape_.kv_tile;
      if (seen.empty()) {
        p_.clear(i, rows.count());
        std::fill_n(dscores, rows.count() * shape_.kv_tile, 0.0f);
        continue;
      }
      active = {std::min(active.first, rows.first), rows.last};
      score_block(task.b, head, queries.first, rows, keys, columns_of(seen, keys), dscores);
    }
    if (active.empty()) return;
    const std::uint32_t amax = amax_bits(dscores_, queries.count() * shape_.kv_tile);
    amax_ = std::max(amax_, amax);
    const InnerScale scale = op_.ds.scale_source == ScaleSource::current
                                 ? ds_quantizer_.scale_of(bits_float(amax))
                                 : ds_scale_;
    ds_.store(*problem_.kernels, dscores_.data(), 0, queries.count(), scale);
    if (task.queries) add_to_queries(task.b, queries, keys, scale.decode, slot);
    if (task.keys) add_to_keys(task.b, head, queries, keys, active, scale.decode);
  }

  /// Computes P of the rows `rows` of the q tile that starts at position `start`, and their dS.
  void score_block(std::int64_t b, std::int64_t head, std::int64_t start, const Range& rows,
                   const Range& keys, const Range& columns, float* dscores) {
    const std::int64_t tile = shape_.kv_tile, d = shape_.head_dim;
    std::fill(scores_.begin(), scores_.end(), 0.0f);
    std::fill(dprobs_.begin(), dprobs_.end(), 0.0f);
    const std::int64_t position = start + rows.first;
    const std::int64_t first = problem_.token(b, position);
    chain_.multiply(q_.rows(head, first), rows.count(), keys_transposed_, {0, d}, columns,
                    scores_.data() + columns.first, tile);
    chain_.multiply(dout_.rows(head, first), rows.count(), values_transposed_, {0, d}, columns,
                    dprobs_.data() + columns.first, tile);
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      const std::int64_t i = position + row, token = first + row;
      const Range seen = problem_.sequence(b).visible(i);
      ScoreGradientRow arguments{};
      arguments.scores = scores_.data() + row * tile;
      arguments.dprobs = dprobs_.data() + row * tile;
      arguments.first = std::max(seen.first, keys.first) - keys.first;
      arguments.last = std::min(seen.last, keys.last) - keys.first;
      arguments.tile = tile;
      arguments.scale = (q_.scale(token, head) * k_scale_) * problem_.factors.scale;
      arguments.is_wide = std::is_same_v<T, float>;
      arguments.dprob_scale = dout_.scale(token, head) * v_scale_;
      arguments.lse = op_.lse.row<float>(head)[token];
      arguments.delta = delta_[head * op_.lse.cols + token];
      problem_.kernels->score_gradient(&arguments, weights_.data() + row * tile,
                                       dscores + row * tile);
    }
    p_.store(*problem_.kernels, weights_.data(), rows.first, rows.count(), p_scale_);
  }

  /// dQ += dS K of all row blocks of the q tile; `slot` is the tile's first row of dq_.
  void add_to_queries(std::int64_t b, const Range& queries, const Range& keys, float ds_scale,
                      std::int64_t slot) {
    const std::int64_t d = shape_.head_dim;
    for (std::int64_t i = 0; i < queries.count(); i += kRowBlock) {
      const std::int64_t last = std::min(i + kRowBlock, queries.count());
      const Range seen =
          problem_.sequence(b).visible({queries.first + i, queries.first + last}, keys);
      if (seen.empty()) continue;
      const Range columns = columns_of(seen, keys);
      chain_.add(*problem_.kernels, ds_.part(i, columns.first), last - i, keys_, columns, d,
                 ds_scale * k_scale_, dq_.data() + (slot + i) * d, d);
    }
  }

  /// dV += P^T dO and dK += dS^T Q over the queries `active` of the tile `queries`.
  void add_to_keys(std::int64_t b, std::int64_t head, const Range& queries, const Range& keys,
                   const Range& active, float ds_scale) {
    const std::int64_t d = shape_.head_dim;
    const std::int64_t first = active.first / kFp8AttentionGroup * kFp8AttentionGroup;
    const std::int64_t count = active.last - first;
    const std::int64_t row = problem_.token(b, queries.first + first);
    queries_.load(p_quantizer_.format(), dout_.rows(head, row), count, d);
    chain_.add(*problem_.kernels, p_.part(first, 0).transposed(), keys.count(), queries_,
               {0, count}, d, p_scale_.decode * dout_.scale(row, head), dv_.data(), d);
    queries_.load(ds_quantizer_.format(), q_.rows(head, row), count, d);
    chain_.add(*problem_.kernels, ds_.part(first, 0).transposed(), keys.count(), queries_,
               {0, count}, d, ds_scale * q_.scale(row, head), dk_.data(), d);
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
            op_.dq, task.b, head, positions);
    }
  }

  const AttentionProblem& problem_;
  const AttentionShape shape_;
  const ops::QuantizedAttentionBackward& op_;
  const float* delta_;  ///< (heads, T)
  HeadOperand<T> q_, k_, v_, dout_;
  InnerQuantizer<T> p_quantizer_, ds_quantizer_;
  InnerScale p_scale_, ds_scale_;  ///< ds_scale_: unless it is that of each tile
  InnerTile<T> p_, ds_;            ///< (q_tile, kv_tile)
  std::uint32_t amax_ = 0;
  ProductChain<T> chain_;
  ProductTile<T> keys_transposed_;    ///< (D, keys)
  ProductTile<T> values_transposed_;  ///< (D, keys)
  ProductTile<T> keys_;               ///< (keys, D)
  ProductTile<T> queries_;            ///< (queries, D) of dO or Q
  float k_scale_ = 1.0f, v_scale_ = 1.0f;
  std::vector<float> dk_, dv_;                    ///< (kv_tile, D)
  std::vector<float> dq_;                         ///< (heads, q tiles * q_tile, D) of the task
  std::vector<float> scores_, dprobs_, weights_;  ///< (kRowBlock, kv_tile)
  std::vector<float> dscores_;                    ///< (q_tile, kv_tile)
};

/// Returns delta (heads, T) = tree_sum_d(dout * out), of dout as it is multiplied.
template <class T>
std::vector<float> row_deltas(const AttentionProblem& problem,
                              const ops::QuantizedAttentionBackward& op) {
  const AttentionShape& shape = problem.shape;
  const std::int64_t d = shape.head_dim, tokens = op.out.rows;
  const HeadOperand<T> dout(op.dout, d);
  std::vector<float> delta(static_cast<std::size_t>(shape.heads * tokens));
#pragma omp parallel
  {
    std::vector<float> scratch(static_cast<std::size_t>(op.out.cols)), gradient(scratch.size());
    std::vector<T> decoded;
#pragma omp for schedule(static)
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* o = read_row(*problem.kernels, op.out, t, scratch.data());
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const Operand<T> row = dout.rows(head, t).values(1, d, decoded);
        if constexpr (std::is_same_v<T, float>) {
          std::copy_n(row.data, d, gradient.data());
        } else {
          problem.kernels->widen(row.data, d, gradient.data());
        }
        problem.kernels->multiply(gradient.data(), dout.scale(t, head), d, gradient.data());
        delta[static_cast<std::size_t>(head * tokens + t)] =
            problem.kernels->dot(gradient.data(), o + head * d, d);
      }
    }
  }
  return delta;
}

template <class T>
void backward(const AttentionProblem& problem, const ops::QuantizedAttentionBackward& op) {
  const std::vector<float> delta = row_deltas<T>(problem, op);
  const std::vector<BackwardTask> tasks = plan_backward(problem);
  std::uint32_t amax = 0;
#pragma omp parallel reduction(max : amax)
  {
    QuantizedBackward<T> pass(problem, op, delta.data());
#pragma omp for schedule(static, 1)
    for (const BackwardTask& task : tasks) pass.run(task);
    amax = std::max(amax, pass.amax());
  }
  if (op.ds_state.empty()) return;
  float& running = op.ds_state.row<float>(0)[DelayedState::kAmax];
  running = bits_float(std::max(float_bits(running), amax));
}

}  // namespace

void run(const ops::QuantizedAttentionBackward& op) {
  op.check();
  const AttentionProblem problem =
      make_attention_problem("quantized_attention_backward", op.shape, op.document_start);
  if (op.values == DType::f32) {
    backward<float>(problem, op);
  } else {
    backward<std::uint16_t>(problem, op);
  }
}

}  // namespace fp8lab::cpu
