// Forward attention on quantized operands, with or without a cache.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "emulation/cpu/attention/cached_tasks.hpp"
#include "emulation/cpu/attention/quantized_chain.hpp"
#include "emulation/cpu/encode_rule.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/scaling.hpp"

namespace fp8lab::cpu {

template <class T>
InnerQuantizer<T>::InnerQuantizer(const QuantSpec& spec) : spec_(spec), format_(spec) {}

template <class T>
InnerScale InnerQuantizer<T>::fixed_scale() const {
  if (spec_.scale_source != ScaleSource::static_scale) return {};
  const float scale = spec_.static_scale;
  return {scale, spec_.scale.divides() ? scale : numerics::bounded_quotient(1.0f, scale)};
}

template <class T>
InnerScale InnerQuantizer<T>::delayed_scale(const TensorView& state) const {
  const float* values = state.row<float>(0);
  const float scale = values[DelayedState::kScale];
  if (scale == 0.0f) return {};
  return {scale, spec_.scale.divides() ? scale : values[DelayedState::kMultiplier]};
}

template <class T>
InnerScale InnerQuantizer<T>::scale_of(float amax) const {
  const numerics::TileScale scale = numerics::tile_scale(spec_.scale, spec_.format, amax);
  return {scale.decode, spec_.scale.divides() ? scale.decode : scale.multiplier};
}

template <class T>
void InnerQuantizer<T>::store(const PointwiseKernels& kernels, const float* values,
                              std::int64_t rows, std::int64_t tile, const InnerScale& scale,
                              void* operands) const {
  if (!format_.has_codes()) {
    for (std::int64_t i = 0; i < rows; ++i) {
      to_operands(kernels, values + i * tile, tile, static_cast<T*>(operands) + i * tile);
    }
    return;
  }
  const EncodeRule rule = encode_rule(spec_);
  const RandomStream random{};
  SourceBlock block{};
  block.data = block.next = values;
  block.rows = rows;
  block.row_stride = block.next_stride = tile;
  block.cols = tile;
  block.tile_height = rows;
  block.tile_width = tile;
  block.tile_stride = 1;
  block.factors = &scale.factor;
  block.index_stride = static_cast<std::uint64_t>(tile);
  const CodeBlock codes{static_cast<std::uint8_t*>(operands), tile, false};
  quantize_kernels().encode(&rule, &random, &block, &codes);
}

template class InnerQuantizer<float>;
template class InnerQuantizer<std::uint16_t>;

namespace {

/// The codes of 1 in the format of v, which sum the weights.
template <class T>
class Ones {
 public:
  Ones(const OperandFormat<T>& weights, const QuantSpec& v, const OperandFormat<T>& format,
       std::int64_t tile) {
    bytes_.resize(static_cast<std::size_t>(tile) * sizeof(T));
    if (format.has_codes()) {
      const std::uint32_t one = numerics::encode(v.format, numerics::float_bits(1.0f));
      std::fill(bytes_.begin(), bytes_.end(), static_cast<std::byte>(one));
    } else {
      const std::vector<float> values(static_cast<std::size_t>(tile), 1.0f);
      to_operands(pointwise_kernels(), values.data(), tile, reinterpret_cast<T*>(bytes_.data()));
    }
    tile_.load(weights, {bytes_.data(), 1, 1, &format}, tile, 1);
  }
  const ProductTile<T>& tile() const { return tile_; }

 private:
  std::vector<std::byte> bytes_;
  ProductTile<T> tile_;
};

struct ForwardTensors {
  const QuantizedOperand &q, &k, &v;
  const QuantSpec& p;
  TensorView out, lse;
};

/// Computes the output rows of one (sequence, head, q tile) at a time; one object per thread. Does
/// not write `lse` if it is empty.
template <class T>
class QuantizedForward {
 public:
  QuantizedForward(const AttentionProblem& problem, const ForwardTensors& tensors)
      : problem_(problem),
        shape_(problem.shape),
        q_(tensors.q, shape_.head_dim),
        k_(tensors.k, shape_.head_dim),
        v_(tensors.v, shape_.head_dim),
        out_(tensors.out),
        lse_(tensors.lse),
        quantizer_(tensors.p),
        scale_(quantizer_.fixed_scale()),
        ones_(quantizer_.format(), tensors.v.spec, v_.format(), shape_.kv_tile),
        weights_(quantizer_, kRowBlock, shape_.kv_tile),
        k_is_constant_(has_one_scale_per_tile(tensors.k.spec, shape_.sequence, shape_.kv_tile)),
        states_(static_cast<std::size_t>(shape_.q_tile)),
        sums_(static_cast<std::size_t>(shape_.q_tile)),
        accumulator_(static_cast<std::size_t>(shape_.q_tile * shape_.head_dim)),
        scores_(static_cast<std::size_t>(kRowBlock * shape_.kv_tile)),
        probabilities_(static_cast<std::size_t>(kRowBlock * shape_.kv_tile)),
        k_scales_(static_cast<std::size_t>(shape_.kv_tile)) {}

  /// Computes the output rows of up to q_tile queries.
  void run(const AttentionSequence& sequence, std::int64_t head, const Range& queries) {
    std::fill(states_.begin(), states_.end(), SoftmaxState{-__builtin_inff(), 0.0f});
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    std::fill(accumulator_.begin(), accumulator_.end(), 0.0f);
    const std::int64_t kv_head = head / problem_.group();
    for (std::int64_t key = 0; key < queries.last; key += shape_.kv_tile) {
      const Range keys{key, std::min(sequence.length, key + shape_.kv_tile)};
      if (sequence.visible(queries, keys).empty()) continue;
      const std::int64_t row = sequence.key_row + key;
      keys_.load(q_.format(), k_.rows(kv_head, row).transposed(), shape_.head_dim, keys.count());
      values_.load(quantizer_.format(), v_.rows(kv_head, row), keys.count(), shape_.head_dim);
      for (std::int64_t j = 0; j < keys.count(); ++j) {
        k_scales_[static_cast<std::size_t>(j)] = k_.scale(row + j, kv_head);
      }
      const float v_scale = v_.scale(row, kv_head);
      for (std::int64_t i = queries.first; i < queries.last; i += kRowBlock) {
        add_tile(sequence, head, {i, std::min(i + kRowBlock, queries.last)}, i - queries.first,
                 keys, v_scale);
      }
    }
    finish(sequence, head, queries);
  }

 private:
  /// Adds the keys of one tile to the rows `queries`, which start at row `slot` of the q tile.
  void add_tile(const AttentionSequence& sequence, std::int64_t head, const Range& queries,
                std::int64_t slot, const Range& keys, float v_scale) {
    const Range seen = sequence.visible(queries, keys);
    if (seen.empty()) return;
    const std::int64_t first = (seen.first - keys.first) / kFp8AttentionGroup * kFp8AttentionGroup;
    const std::int64_t last = seen.last - keys.first;
    const std::int64_t row = sequence.query_row + queries.first, d = shape_.head_dim;
    std::fill(scores_.begin(), scores_.end(), 0.0f);
    chain_.multiply(q_.rows(head, row), queries.count(), keys_, {0, d}, {first, last},
                    scores_.data() + first, shape_.kv_tile);
    for (std::int64_t i = 0; i < queries.count(); ++i) {
      add_row(sequence.visible(queries.first + i), slot + i, i, keys, q_.scale(row + i, head));
    }
    weights_.store(*problem_.kernels, probabilities_.data(), 0, queries.count(), scale_);
    const OperandPart<T> weights = weights_.part(0, first);
    chain_.add(*problem_.kernels, weights, queries.count(), values_, {first, last}, d, v_scale,
               accumulator_.data() + slot * d, d);
    chain_.add(*problem_.kernels, weights, queries.count(), ones_.tile(), {first, last}, 1, 1.0f,
               sums_.data() + slot, 1);
  }

  /// Computes the softmax of row `row` of the score block, which is row `slot` of the q tile and
  /// sees the keys `seen`.
  void add_row(const Range& seen, std::int64_t slot, std::int64_t row, const Range& keys,
               float q_scale) {
    const PointwiseKernels& kernels = *problem_.kernels;
    float* scores = scores_.data() + row * shape_.kv_tile;
    float* probabilities = probabilities_.data() + row * shape_.kv_tile;
    const std::int64_t first = std::max(seen.first, keys.first) - keys.first;
    const std::int64_t last = std::min(seen.last, keys.last) - keys.first;
    if (first >= last) {
      std::fill_n(probabilities, shape_.kv_tile, 0.0f);
      return;
    }
    if (k_is_constant_) {
      q_scale *= k_scales_.front();
    } else {
      for (std::int64_t j = first; j < last; ++j) {
        scores[j] *= k_scales_[static_cast<std::size_t>(j)];
      }
    }
    SoftmaxState& state = states_[static_cast<std::size_t>(slot)];
    kernels.softmax_row(scores, first, last, shape_.kv_tile, q_scale * problem_.factors.scale,
                        std::is_same_v<T, float>, &state, probabilities);
    float* accumulator = accumulator_.data() + slot * shape_.head_dim;
    kernels.multiply(accumulator, state.alpha, shape_.head_dim, accumulator);
    sums_[static_cast<std::size_t>(slot)] *= state.alpha;
  }

  void finish(const AttentionSequence& sequence, std::int64_t head, const Range& queries) {
    const PointwiseKernels& kernels = *problem_.kernels;
    for (std::int64_t i = queries.first; i < queries.last; ++i) {
      const std::int64_t slot = i - queries.first;
      float* row = accumulator_.data() + slot * shape_.head_dim;
      const std::int64_t token = sequence.query_row + i;
      const auto at = static_cast<std::size_t>(slot);
      kernels.softmax_end(states_[at].maximum, sums_[at], row, shape_.head_dim, row);
      if (!lse_.empty()) {
        lse_.row<float>(head)[token] =
            kernels.softmax_end(states_[at].maximum, sums_[at] * scale_.decode, row, 0, nullptr);
      }
      write_row(kernels, row, shape_.head_dim, out_, token, head * shape_.head_dim);
    }
  }

  const AttentionProblem& problem_;
  const AttentionShape shape_;
  HeadOperand<T> q_, k_, v_;
  TensorView out_, lse_;
  InnerQuantizer<T> quantizer_;
  InnerScale scale_;  ///< of P
  Ones<T> ones_;
  InnerTile<T> weights_;
  bool k_is_constant_;
  ProductChain<T> chain_;
  ProductTile<T> keys_;    ///< (D, keys)
  ProductTile<T> values_;  ///< (keys, D)
  std::vector<SoftmaxState> states_;
  std::vector<float> sums_;         ///< sums of weights, for each row of the q tile
  std::vector<float> accumulator_;  ///< (q_tile, D)
  std::vector<float> scores_;       ///< (kRowBlock, kv_tile)
  std::vector<float> probabilities_;
  std::vector<float> k_scales_;  ///< of the keys of a tile
};

template <class T>
void forward(const AttentionProblem& problem, const ForwardTensors& tensors) {
  const AttentionShape& shape = problem.shape;
  const std::int64_t tiles = problem.q_tiles();
#pragma omp parallel
  {
    QuantizedForward<T> pass(problem, tensors);
#pragma omp for schedule(static, 1)
    for (std::int64_t task = 0; task < shape.batch * shape.heads * tiles; ++task) {
      pass.run(problem.sequence(task / (shape.heads * tiles)), task / tiles % shape.heads,
               problem.positions(task % tiles, shape.q_tile));
    }
  }
}

template <class T>
void forward_cached(const AttentionProblem& problem, const std::vector<CachedTask>& tasks,
                    const ForwardTensors& tensors) {
  const std::int64_t heads = problem.shape.heads;
  const auto count = static_cast<std::int64_t>(tasks.size()) * heads;
#pragma omp parallel
  {
    QuantizedForward<T> pass(problem, tensors);
#pragma omp for schedule(static, 1)
    for (std::int64_t i = 0; i < count; ++i) {
      const CachedTask& task = tasks[static_cast<std::size_t>(i / heads)];
      pass.run(task.sequence, i % heads, task.queries);
    }
  }
}

/// The operand that a cache holds, as k or v of the new tokens.
QuantizedOperand cached_operand(const QuantizedOperand& fresh, const TensorView& cache,
                                const TensorView& scales) {
  QuantizedOperand operand = fresh;
  operand.rows = cache.rows;
  operand.codes = cache;
  if (!scales.empty()) operand.scales = scales;
  return operand;
}

}  // namespace

void run(const ops::QuantizedAttentionForward& op) {
  op.check();
  const AttentionProblem problem =
      make_attention_problem("quantized_attention_forward", op.shape, op.document_start);
  const ForwardTensors tensors{op.q, op.k, op.v, op.p, op.out, op.lse};
  if (op.values == DType::f32) {
    forward<float>(problem, tensors);
  } else {
    forward<std::uint16_t>(problem, tensors);
  }
}

void run(const ops::QuantizedAttentionCached& op) {
  op.check();
  const std::vector<CachedTask> tasks =
      cached_tasks("quantized_attention_cached", op.shape, op.q.rows, op.query_start, op.cached);
  for (const CachedTask& task : tasks) {
    append(task, op.k.codes, op.k_cache);
    append(task, op.v.codes, op.v_cache);
    if (!op.k_scale_cache.empty()) append(task, op.k.scales, op.k_scale_cache);
  }
  AttentionProblem problem;
  problem.shape = op.shape;
  problem.factors = attention_factors(op.shape);
  problem.kernels = &pointwise_kernels();
  const QuantizedOperand k = cached_operand(op.k, op.k_cache, op.k_scale_cache);
  const QuantizedOperand v = cached_operand(op.v, op.v_cache, {});
  const ForwardTensors tensors{op.q, k, v, op.p, op.out, TensorView{}};
  if (op.values == DType::f32) {
    forward_cached<float>(problem, tasks, tensors);
  } else {
    forward_cached<std::uint16_t>(problem, tasks, tensors);
  }
}

}  // namespace fp8lab::cpu
