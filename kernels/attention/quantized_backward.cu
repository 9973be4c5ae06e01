// Attention backward on quantized operands (emulation/ops/attention/quantized_attention.hpp), in
// passes over the pairs as in attention_backward.cu, with operand tiles of 64 columns that hold
// decoded values.
//
//   quantized_deltas           delta = tree_sum(dout8 * sdo * out); a warp for each token and head
//   quantized_amaxes           if the scale of dS needs it: the amax of dS for each tile of queries
//                              I and tile of keys J, or of all pairs; a block: 64 queries of a head
//   quantized_tile_scales      the scales of the tiles (I, J)
//   quantized_key_gradients    a block: 64 keys of a kv head, 64 output columns; query heads of the
//                              group ascending, tiles I ascending
//   quantized_query_gradients  a block: 64 queries of a head, 64 output columns; tiles J ascending
//
// The queries of a block, or of a step of the loop over queries, lie in one tile I, and the keys in
// one tile J: a step is cut at the tile's end. For each step of 64 queries by 64 keys:
//
//   S = chain(0; Q8, K8^T), dP = chain(0; dO8, V8^T)
//   P = w(lse - S * f), dS = P * (dP * g - delta)
//   P8 = cast(P), dS8 = cast(dS)        to shared memory, decoded; masked pairs are zeros before
//
// The sums over a tile are partial sums in registers, promoted at its end.
#include "emulation/numerics/scaling.hpp"
#include "emulation/ops/checks.hpp"
#include "kernels/attention/quantized_tiles.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

template <class T>
struct BackwardOperands {
  QuantizedRows<T> q, k, v, dout;
  InnerCast p, ds;
  InnerScale p_scale, ds_scale;  ///< ds_scale: unless it is delayed or that of each tile
  const float* ds_state;         ///< DelayedState; nullptr: not delayed
  bool ds_divides;
  const InnerScale* tile_scales;  ///< (B, heads, q tiles, kv tiles); nullptr: one for all
  Product qk, dov, pdo, dsq, dsk;
  ResultRows lse;      ///< (heads, T)
  const float* delta;  ///< (heads, T)
};

/// Tiles of `width` tokens of a sequence, in steps of at most kTileRows tokens.
struct TileSteps {
  int width, sequence;

  __host__ __device__ int tiles() const { return (sequence + width - 1) / width; }
  __host__ __device__ int steps_of_tile() const { return (width + kTileRows - 1) / kTileRows; }
  __host__ __device__ int count() const { return tiles() * steps_of_tile(); }
  __device__ int end(int tile) const { return min((tile + 1) * width, sequence); }
};

__host__ __device__ inline TileSteps query_steps(const AttentionProblem& problem) {
  return {problem.q_tile, problem.sequence};
}
__host__ __device__ inline TileSteps key_steps(const AttentionProblem& problem) {
  return {problem.kv_tile, problem.sequence};
}

/// The step of tokens, head, sequence and first output column of a block.
struct StepTask {
  int b, head, column;
  int tile, first, last;  ///< tokens [first, last) of a tile; empty past the sequence

  /// Late tokens come first if `is_reversed`.
  __device__ StepTask(const AttentionProblem& problem, const TileSteps& steps, int heads,
                      int slices, bool is_reversed) {
    int rest = static_cast<int>(blockIdx.x);
    column = rest % slices * kQuantizedWidth;
    rest /= slices;
    head = rest % heads;
    rest /= heads;
    b = rest % problem.batch;
    rest /= problem.batch;
    const int step = is_reversed ? steps.count() - 1 - rest : rest;
    tile = step / steps.steps_of_tile();
    first = tile * steps.width + step % steps.steps_of_tile() * kTileRows;
    last = min(first + kTileRows, steps.end(tile));
  }
};

/// Computes delta (heads, T) = tree_sum_d(RN(sdo * dout8) * out), with one warp for each value.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads)
    quantized_deltas(const __grid_constant__ AttentionProblem problem,
                     const __grid_constant__ QuantizedRows<T> dout, ResultRows out, float* delta) {
  const std::int64_t task = std::int64_t{blockIdx.x} * kAttentionWarps + warp_id();
  if (task >= problem.tokens() * problem.heads) return;
  const std::int64_t token = task / problem.heads;
  const int head = static_cast<int>(task % problem.heads);
  const int first = head * problem.head_dim;
  const float scale = dout.scales(token, head);
  const float sum = warp_tree_sum(problem.head_dim, [&](std::int64_t d) {
    const int column = first + static_cast<int>(d);
    return dout.value(token, column) * scale * out.load(token, column);
  });
  if (lane_id() == 0) delta[head * problem.tokens() + token] = sum;
}

/// The operand tiles of one block, and P and dS of its pairs.
template <class T>
struct QuantizedPairs {
  using OperandTile = QuantizedTile<T>;
  using ScoreTile = Tile<T, kTileRows>;
  static constexpr std::size_t kBytes =
      (4 * OperandTile::kElements + 2 * ScoreTile::kElements + 2 * kCodeValues) * sizeof(T);

  const AttentionProblem& problem;
  const BackwardOperands<T>& operands;
  OperandTile q, dout, k, v;
  ScoreTile ds, p;  ///< (queries, keys), as operands
  T *ds_values, *p_values;

  __device__ QuantizedPairs(const AttentionProblem& call, const BackwardOperands<T>& tensors)
      : problem(call),
        operands(tensors),
        q(shared_memory<T>()),
        dout(q.end()),
        k(dout.end()),
        v(k.end()),
        ds(v.end()),
        p(ds.row(0) + ScoreTile::kElements),
        ds_values(p.row(0) + ScoreTile::kElements),
        p_values(ds_values + kCodeValues) {
    q.prepare(operands.q);
    dout.prepare(operands.dout);
    k.prepare(operands.k);
    v.prepare(operands.v);
    if (operands.ds.has_codes) decode_values(operands.ds.cast.element.format, ds_values);
    if (operands.p.has_codes) decode_values(operands.p.cast.element.format, p_values);
  }

  __device__ QuantizedHead<T> head_rows(const QuantizedRows<T>& rows, int b, int head, int first,
                                        int last) const {
    return {rows, problem.token(b, first), last - first, head * problem.head_dim};
  }

  /// Returns the rows of the warp in the step of queries [first, last).
  __device__ WarpQueries warp_rows(int b, int first, int last) const {
    const int own = first + warp_id() * kChainGroup;
    return {PackedSequence{problem, b}, own < last ? own : problem.sequence};
  }

  /// Returns the scale of dS in the tile of queries `q_tile` and keys `kv_tile`.
  __device__ InnerScale ds_scale(int b, int head, int q_tile, int kv_tile) const {
    if (operands.ds_state != nullptr) {
      const float scale = operands.ds_state[DelayedState::kScale];
      if (scale == 0.0f) return {};
      return {scale, operands.ds_divides ? scale : operands.ds_state[DelayedState::kMultiplier]};
    }
    if (operands.tile_scales == nullptr) return operands.ds_scale;
    return operands.tile_scales[tile_index(problem, b, head, q_tile, kv_tile)];
  }

  __host__ __device__ static std::int64_t tile_index(const AttentionProblem& problem, int b,
                                                     int head, int q_tile, int kv_tile) {
    return ((std::int64_t{b} * problem.heads + head) * query_steps(problem).tiles() + q_tile) *
               key_steps(problem).tiles() +
           kv_tile;
  }

  /// Calls use(r, n, e, P, dS) for the pairs of the warp's 16 queries of the step [query,
  /// query_end) and the keys [key, key_end) of the kv tile `kv_tile`: element (r, n, e) is that of
  /// a fragment. Both are 0 for masked pairs. Precondition: the whole block calls it.
  template <class Use>
  __device__ void compute(const WarpQueries& rows, int b, int head, int query, int query_end,
                          int key, int key_end, int kv_tile, const Use& use) {
    const int kv_head = head / problem.group();
    const unsigned pairs = rows.groups(key, key_end);
    float score[kScoreBlocks][4], dprob[kScoreBlocks][4];
    clear(score);
    clear(dprob);
    const auto nothing = [] {};
    add_scores(operands.qk, head_rows(operands.q, b, head, query, query_end),
               head_rows(operands.k, b, kv_head, key, key_end), problem.head_dim, pairs, q, k,
               nothing, score);
    add_scores(operands.dov, head_rows(operands.dout, b, head, query, query_end),
               head_rows(operands.v, b, kv_head, key, key_end), problem.head_dim, pairs, dout, v,
               nothing, dprob);
    const std::int64_t keys = problem.token(b, kv_tile * problem.kv_tile);
    const float k_scale = operands.k.scales(keys, kv_head);
    const float v_scale = operands.v.scales(keys, kv_head);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool inside = rows.position[r] >= 0;
      const std::int64_t token = problem.token(b, inside ? rows.position[r] : 0);
      const float factor = operands.q.scales(token, head) * k_scale * problem.factors.scale;
      const float gain = operands.dout.scales(token, head) * v_scale;
      const float lse = inside ? operands.lse.load(head, token) : 0.0f;
      const float delta = inside ? operands.delta[head * problem.tokens() + token] : 0.0f;
#pragma unroll
      for (int n = 0; n < kScoreBlocks; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = key + 8 * n + fragment_column() + e, i = 2 * r + e;
          const bool visible = j < key_end && rows.sees(r, j);
          const float weight = weight_of<T>(numerics::score_distance(score[n][i], factor, lse));
          const float gradient = weight * numerics::fused_multiply_add(dprob[n][i], gain, -delta);
          use(r, n, e, visible ? weight : 0.0f, visible ? gradient : 0.0f);
        }
      }
    }
  }

  /// Returns the place of an element of the warp's fragment in `tile`.
  __device__ static T* at(const ScoreTile& tile, int r, int n, int e) {
    return tile.row(warp_id() * kChainGroup + fragment_row() + 8 * r) + 8 * n + fragment_column() +
           e;
  }
};

/// Returns a magnitude as bits, the canonical ones for NaN.
__device__ inline std::uint32_t magnitude_bits(float value) {
  return numerics::float_bits(numerics::canonical_nan(value)) & 0x7FFFFFFFu;
}

/// Raises amaxes[tile], or with `is_one` amaxes[0], to the magnitudes of dS.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    quantized_amaxes(const __grid_constant__ AttentionProblem problem,
                     const __grid_constant__ BackwardOperands<T> operands, std::uint32_t* amaxes,
                     bool is_one) {
  const StepTask task(problem, query_steps(problem), problem.heads, 1, true);
  if (task.first >= task.last) return;
  QuantizedPairs<T> pairs(problem, operands);
  const WarpQueries rows = pairs.warp_rows(task.b, task.first, task.last);
  const KeyRange seen(PackedSequence{problem, task.b}, task.first);
  const TileSteps steps = key_steps(problem);
  for (int tile = seen.first / steps.width; tile * steps.width < seen.last; ++tile) {
    std::uint32_t amax = 0;
    const int first = tile * steps.width, end = min(steps.end(tile), seen.last);
    const int begin = first + (max(seen.first, first) - first) / kTileRows * kTileRows;
    for (int key = begin; key < end; key += kTileRows) {
      pairs.compute(rows, task.b, task.head, task.first, task.last, key,
                    min(key + kTileRows, steps.end(tile)), tile,
                    [&](int, int, int, float, float gradient) {
                      amax = max(amax, magnitude_bits(gradient));
                    });
    }
    amax = __reduce_max_sync(kAllLanes, amax);
    if (lane_id() != 0 || amax == 0) continue;
    atomicMax(amaxes + (is_one ? 0
                               : QuantizedPairs<T>::tile_index(problem, task.b, task.head,
                                                               task.tile, tile)),
              amax);
  }
}

__global__ void __launch_bounds__(kAttentionThreads)
    quantized_tile_scales(numerics::ScaleRule rule, numerics::FormatSpec format,
                          const std::uint32_t* amaxes, std::int64_t count, InnerScale* scales) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kAttentionThreads + threadIdx.x;
  if (i >= count) return;
  const numerics::TileScale scale =
      numerics::tile_scale(rule, format, numerics::bits_float(amaxes[i]));
  scales[i] = {scale.decode, rule.divides() ? scale.decode : scale.multiplier};
}

/// Stores the warp's 16 rows of the tokens [first, last), columns from `column` on of a head, times
/// `factor`.
__device__ inline void store_sums(const AttentionProblem& problem, const StepTask& task,
                                  const Sums& sums, float factor, const ResultRows& result) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int position = task.first + warp_id() * kChainGroup + fragment_row() + 8 * r;
    if (position >= task.last) continue;
#pragma unroll
    for (int n = 0; n < kResultBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = task.column + 8 * n + fragment_column() + e;
        if (column >= problem.head_dim) continue;
        result.store(problem.token(task.b, position), task.head * problem.head_dim + column,
                     sums[n][2 * r + e] * factor);
      }
    }
  }
}

__host__ __device__ inline int slices_of(const AttentionProblem& problem) {
  return (problem.head_dim + kQuantizedWidth - 1) / kQuantizedWidth;
}

/// Computes dQ of the queries of a step of one head, keys ascending. Late queries have the most
/// keys and come first.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    quantized_query_gradients(const __grid_constant__ AttentionProblem problem,
                              const __grid_constant__ BackwardOperands<T> operands,
                              ResultRows dq_rows) {
  using Pairs = QuantizedPairs<T>;
  const StepTask task(problem, query_steps(problem), problem.heads, slices_of(problem), true);
  if (task.first >= task.last) return;
  const int kv_head = task.head / problem.group();
  const unsigned columns = group_bits(min(kQuantizedWidth, problem.head_dim - task.column));
  Pairs pairs(problem, operands);
  const WarpQueries rows = pairs.warp_rows(task.b, task.first, task.last);
  const KeyRange seen(PackedSequence{problem, task.b}, task.first);
  const TileSteps steps = key_steps(problem);
  const bool promoted = operands.dsk.is_promoted;
  Sums dq = {};
  for (int tile = seen.first / steps.width; tile * steps.width < seen.last; ++tile) {
    const int first = tile * steps.width, last = steps.end(tile);
    const InnerScale scale = pairs.ds_scale(task.b, task.head, task.tile, tile);
    const int lower = max(rows.first_key, first), upper = min(rows.last_key, last);
    const int begin = first + (max(seen.first, first) - first) / kTileRows * kTileRows;
    Sums part;
    begin_sum(promoted, dq, part);
    for (int key = begin; key < min(last, seen.last); key += kTileRows) {
      const int key_end = min(key + kTileRows, last);
      pairs.compute(rows, task.b, task.head, task.first, task.last, key, key_end, tile,
                    [&](int r, int n, int e, float, float gradient) {
                      operands.ds.store(gradient, scale, pairs.ds_values,
                                        Pairs::at(pairs.ds, r, n, e));
                    });
      __syncthreads();
      pairs.k.load(pairs.head_rows(operands.k, task.b, kv_head, key, key_end), task.column,
                   problem.head_dim);
      __syncthreads();
      const StepRange range = summed_range(first, lower, upper, key);
      if (lower < upper) {
        multiply<Stored::as_is, Stored::as_is>(
            operands.dsk, pairs.ds.row(warp_id() * kChainGroup), Pairs::ScoreTile::kStride,
            pairs.k.row(0), Pairs::OperandTile::kStride, range.first, range.last, columns, part);
      }
      __syncwarp();
    }
    if (lower >= upper) continue;
    const float k_scale = operands.k.scales(problem.token(task.b, first), kv_head);
    end_sum(promoted, part, scale.decode * k_scale, dq);
  }
  store_sums(problem, task, dq, problem.factors.r, dq_rows);
}

/// Returns the queries of the tile [first, last), in whole row blocks from the first to the last
/// one that sees a key of [key, key_end); empty if none does.
__device__ inline StepRange active_queries(const AttentionProblem& problem, int b, int first,
                                           int last, int key, int key_end) {
  const std::int32_t* starts = problem.block_start + b * problem.row_blocks();
  StepRange active{last, first};
  for (int i = first; i < last; i += kChainGroup) {
    const int end = min(i + kChainGroup, last);
    if (max(starts[i / kChainGroup], key) >= min(end, key_end)) continue;
    active = {min(active.first, i), end};
  }
  return active;
}

/// Computes dK and dV of the keys of a step of one kv head, with query heads of the group ascending
/// and queries ascending.
template <class T>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    quantized_key_gradients(const __grid_constant__ AttentionProblem problem,
                            const __grid_constant__ BackwardOperands<T> operands,
                            ResultRows dk_rows, ResultRows dv_rows) {
  using Pairs = QuantizedPairs<T>;
  const StepTask task(problem, key_steps(problem), problem.kv_heads, slices_of(problem), false);
  if (task.first >= task.last) return;
  const unsigned columns = group_bits(min(kQuantizedWidth, problem.head_dim - task.column));
  Pairs pairs(problem, operands);
  const TileSteps steps = query_steps(problem);
  const int first_key = task.tile * problem.kv_tile, last_key = key_steps(problem).end(task.tile);
  const int own = warp_id() * kChainGroup;
  Sums dk = {}, dv = {};
  for (int i = 0; i < problem.group(); ++i) {
    const int head = task.head * problem.group() + i;
    for (int tile = first_key / steps.width; tile < steps.tiles(); ++tile) {
      const int first = tile * steps.width, last = steps.end(tile);
      const StepRange active = active_queries(problem, task.b, first, last, first_key, last_key);
      if (active.first >= active.last) continue;
      const InnerScale scale = pairs.ds_scale(task.b, head, tile, task.tile);
      Sums dk_part, dv_part;
      begin_sum(operands.dsq.is_promoted, dk, dk_part);
      begin_sum(operands.pdo.is_promoted, dv, dv_part);
      for (int query = first + (active.first - first) / kTileRows * kTileRows; query < active.last;
           query += kTileRows) {
        const int query_end = min(query + kTileRows, last);
        const WarpQueries rows = pairs.warp_rows(task.b, query, query_end);
        // P of row blocks that see no key of the kv tile has code 0.
        const bool is_clear = max(rows.first_key, first_key) >= min(rows.last_key, last_key);
        pairs.compute(rows, task.b, head, query, query_end, task.first, task.last, task.tile,
                      [&](int r, int n, int e, float weight, float gradient) {
                        operands.ds.store(gradient, scale, pairs.ds_values,
                                          Pairs::at(pairs.ds, r, n, e));
                        T* const p = Pairs::at(pairs.p, r, n, e);
                        operands.p.store(weight, operands.p_scale, pairs.p_values, p);
                        if (is_clear && operands.p.has_codes) *p = pairs.p_values[0];
                      });
        __syncthreads();
        pairs.dout.load(pairs.head_rows(operands.dout, task.b, head, query, query_end), task.column,
                        problem.head_dim);
        pairs.q.load(pairs.head_rows(operands.q, task.b, head, query, query_end), task.column,
                     problem.head_dim);
        __syncthreads();
        const StepRange range = summed_range(first, active.first, active.last, query);
        multiply<Stored::transposed, Stored::as_is>(
            operands.pdo, pairs.p.row(0) + own, Pairs::ScoreTile::kStride, pairs.dout.row(0),
            Pairs::OperandTile::kStride, range.first, range.last, columns, dv_part);
        multiply<Stored::transposed, Stored::as_is>(
            operands.dsq, pairs.ds.row(0) + own, Pairs::ScoreTile::kStride, pairs.q.row(0),
            Pairs::OperandTile::kStride, range.first, range.last, columns, dk_part);
        __syncthreads();  // before P and dS are written again
      }
      const std::int64_t token = problem.token(task.b, first);
      end_sum(operands.dsq.is_promoted, dk_part, scale.decode * operands.q.scales(token, head), dk);
      end_sum(operands.pdo.is_promoted, dv_part,
              operands.p_scale.decode * operands.dout.scales(token, head), dv);
    }
  }
  store_sums(problem, task, dk, problem.factors.r, dk_rows);
  store_sums(problem, task, dv, 1.0f, dv_rows);
}

/// Parts of the workspace of a call, each aligned for its type.
struct Workspace {
  std::int64_t deltas, tiles, block_starts;  ///< counts

  Workspace(const ops::QuantizedAttentionBackward& op, const AttentionProblem& problem)
      : deltas(problem.tokens() * problem.heads),
        tiles(op.ds.scale_source != ScaleSource::current
                  ? 0
                  : std::int64_t{problem.batch} * problem.heads * query_steps(problem).tiles() *
                        key_steps(problem).tiles()),
        block_starts(static_cast<std::int64_t>(block_start_count(op.shape))) {}

  std::size_t bytes() const {
    return static_cast<std::size_t>(tiles) * (sizeof(InnerScale) + sizeof(std::uint32_t)) +
           static_cast<std::size_t>(deltas) * sizeof(float) +
           static_cast<std::size_t>(block_starts) * sizeof(std::int32_t);
  }
};

/// Launches `kernel` with a block for each step, head and slice. Throws Error for too many blocks.
template <class... Parameters, class... Arguments>
void launch_steps(Context& context, const char* name, void (*kernel)(Parameters...),
                  const TileSteps& steps, std::int64_t tasks, std::size_t bytes,
                  const Arguments&... arguments) {
  const std::int64_t blocks = steps.count() * tasks;
  Checks(name).require(blocks <= std::numeric_limits<std::int32_t>::max(),
                       std::to_string(blocks) + " blocks are more than a grid has");
  launch_attention(context, name, kernel, blocks, bytes, arguments...);
}

template <class T>
void backward(Context& context, const ops::QuantizedAttentionBackward& op,
              AttentionProblem problem) {
  const Workspace sizes(op, problem);
  auto* const scales = static_cast<InnerScale*>(context.workspace(sizes.bytes()));
  auto* const amaxes = reinterpret_cast<std::uint32_t*>(scales + sizes.tiles);
  auto* const delta = reinterpret_cast<float*>(amaxes + sizes.tiles);
  problem.block_start = reinterpret_cast<std::int32_t*>(delta + sizes.deltas);
  find_block_starts(context, problem);
  const bool is_delayed = !op.ds_state.empty(), is_of_tile = sizes.tiles > 0;
  float* const state = is_delayed ? op.ds_state.row<float>(0) : nullptr;
  const std::int64_t d = op.shape.head_dim;
  const BackwardOperands<T> operands{quantized_rows<T>(op.q, d),
                                     quantized_rows<T>(op.k, d),
                                     quantized_rows<T>(op.v, d),
                                     quantized_rows<T>(op.dout, d),
                                     inner_cast(op.p),
                                     inner_cast(op.ds),
                                     fixed_scale(op.p),
                                     fixed_scale(op.ds),
                                     state,
                                     op.ds.scale.divides(),
                                     is_of_tile ? scales : nullptr,
                                     product_of(op.q.spec, op.k.spec),
                                     product_of(op.dout.spec, op.v.spec),
                                     product_of(op.p, op.dout.spec),
                                     product_of(op.ds, op.q.spec),
                                     product_of(op.ds, op.k.spec),
                                     result_rows(op.lse),
                                     delta};
  launch_attention(context, "quantized_deltas", quantized_deltas<T>,
                   (sizes.deltas + kAttentionWarps - 1) / kAttentionWarps, 0, problem,
                   operands.dout, result_rows(op.out), delta);
  constexpr std::size_t kBytes = QuantizedPairs<T>::kBytes;
  const std::int64_t heads = std::int64_t{problem.batch} * problem.heads;
  const std::int64_t slices = slices_of(problem);
  if (is_of_tile) {
    check(cudaMemsetAsync(amaxes, 0, static_cast<std::size_t>(sizes.tiles) * sizeof *amaxes,
                          context.stream()),
          "cudaMemsetAsync");
  }
  if (is_of_tile || is_delayed) {
    auto* const raised =
        is_delayed ? reinterpret_cast<std::uint32_t*>(state + DelayedState::kAmax) : amaxes;
    launch_steps(context, "quantized_amaxes", quantized_amaxes<T>, query_steps(problem), heads,
                 kBytes, problem, operands, raised, is_delayed);
  }
  if (is_of_tile) {
    launch_attention(context, "quantized_tile_scales", quantized_tile_scales,
                     (sizes.tiles + kAttentionThreads - 1) / kAttentionThreads, 0, op.ds.scale,
                     op.ds.format, amaxes, sizes.tiles, scales);
  }
  launch_steps(context, "quantized_key_gradients", quantized_key_gradients<T>, key_steps(problem),
               slices * problem.batch * problem.kv_heads, kBytes, problem, operands,
               result_rows(op.dk), result_rows(op.dv));
  launch_steps(context, "quantized_query_gradients", quantized_query_gradients<T>,
               query_steps(problem), slices * heads, kBytes, problem, operands, result_rows(op.dq));
}

}  // namespace

void run(Context& context, const ops::QuantizedAttentionBackward& op) {
  op.check();
  if (op.shape.batch == 0) return;
  const AttentionProblem problem =
      make_attention_problem("quantized_attention_backward", op.shape, op.document_start, nullptr);
  const auto launch = op.values == DType::f32 ? backward<float> : backward<std::uint16_t>;
  launch(context, op, problem);
}

}  // namespace fp8lab::cuda
