#include <algorithm>
#include <cstdint>

#include "emulation/numerics/exact_math.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/runtime/fault.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

/// Calls body(col, count) for the groups of columns of a row, shared among the threads of a block.
template <class Body>
__device__ void for_each_group_of_row(std::int64_t cols, const Body& body) {
  for (std::int64_t col = static_cast<std::int64_t>(threadIdx.x) * kGroup; col < cols;
       col += static_cast<std::int64_t>(blockDim.x) * kGroup) {
    body(col, cols - col < kGroup ? static_cast<int>(cols - col) : kGroup);
  }
}

template <class T>
struct GroupBits {
  T bits[kGroup];
};

/// The same with the elements of row `row`: body(col, count, bits). A thread reads four groups
/// before it uses the first.
template <class T, class Body>
__device__ void for_each_group_of_elements(const Rows<T>& z, std::int64_t row, std::int64_t cols,
                                           const Body& body) {
  constexpr int kTogether = 4;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kGroup;
  std::int64_t col = static_cast<std::int64_t>(threadIdx.x) * kGroup;
  for (; z.wide && col + (kTogether - 1) * step + kGroup <= cols; col += kTogether * step) {
    GroupBits<T> groups[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      z.load_bits(row, col + j * step, kGroup, groups[j].bits);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) body(col + j * step, kGroup, groups[j].bits);
  }
  for (; col < cols; col += step) {
    const int count = cols - col < kGroup ? static_cast<int>(cols - col) : kGroup;
    GroupBits<T> group;
    z.load_bits(row, col, count, group.bits);
    body(col, count, group.bits);
  }
}

/// The larger one; a NaN in `value` loses.
__device__ float larger(float best, float value) { return value > best ? value : best; }

/// What the elements of a row say about its exponentials.
struct Extent {
  float maximum;     ///< NaN ignored; -inf when there is none
  bool short_range;  ///< all are finite, and exp2((z - maximum) * kLog2E) is normal
};

/// Largest and smallest of the elements seen; NaN is ignored by the one and is the other.
template <class T>
struct Extremes {
  float best = kMinusInfinity, least = -kMinusInfinity;

  __device__ void add(const T (&values)[kGroup]) {
#pragma unroll
    for (const T value : values) {
      best = larger(best, value);
      least = smaller_or_nan(least, value);
    }
  }
  __device__ static float smaller_or_nan(float x, float y) { return x < y || x != x ? x : y; }
};
/// In pairs of bf16.
template <>
struct Extremes<std::uint16_t> {
  __nv_bfloat162 best = __float2bfloat162_rn(kMinusInfinity);
  __nv_bfloat162 least = __float2bfloat162_rn(-kMinusInfinity);

  __device__ void add(const std::uint16_t (&values)[kGroup]) {
    __nv_bfloat162 pairs[kGroup / 2];
    std::memcpy(pairs, values, sizeof pairs);
#pragma unroll
    for (const __nv_bfloat162 pair : pairs) {
      best = __hmax2(best, pair);
      least = __hmin2_nan(least, pair);
    }
  }
};
__device__ Extremes<float> widened(const Extremes<float>& seen) { return seen; }
__device__ Extremes<float> widened(const Extremes<std::uint16_t>& seen) {
  return {larger(__low2float(seen.best), __high2float(seen.best)),
          Extremes<float>::smaller_or_nan(__low2float(seen.least), __high2float(seen.least))};
}

/// Extent of a row; every thread of the block gets it. The order is free: only the sign of a zero
/// depends on it, which no user of it sees.
template <class T>
__device__ Extent block_extent(const Rows<T>& z, std::int64_t row, std::int64_t cols) {
  __shared__ Extremes<float> of_warp[kWarpSize];
  Extremes<T> seen;
  for_each_group_of_elements(z, row, cols, [&](std::int64_t, int count, T(&values)[kGroup]) {
#pragma unroll
    for (int i = 1; i < kGroup; ++i) values[i] = i < count ? values[i] : values[0];
    seen.add(values);
  });
  Extremes<float> own = widened(seen);
  for (int span = kWarpSize / 2; span > 0; span /= 2) {
    own.best = larger(own.best, __shfl_xor_sync(kAllLanes, own.best, span));
    own.least =
        Extremes<float>::smaller_or_nan(own.least, __shfl_xor_sync(kAllLanes, own.least, span));
  }
  if (lane_id() == 0) of_warp[warp_id()] = own;
  __syncthreads();
  for (int warp = 0; warp < warp_count(); ++warp) {
    own.best = larger(own.best, of_warp[warp].best);
    own.least = Extremes<float>::smaller_or_nan(own.least, of_warp[warp].least);
  }
  __syncthreads();
  // False where an element is NaN or infinite: the exponent is NaN or -inf.
  const float exponent = (own.least - own.best) * numerics::kLog2E;
  return {own.best, exponent >= -numerics::kExp2Normal};
}

template <class D>
struct Gradient {
  Rows<D> rows;  ///< data is null when only the loss is wanted

  __device__ bool wanted() const { return rows.data != nullptr; }
  __device__ void zero(std::int64_t row, std::int64_t cols) const {
    const float zeros[kGroup] = {};
    for_each_group_of_row(
        cols, [&](std::int64_t col, int count) { rows.store_group(row, col, count, zeros); });
  }
};

struct TokenData {
  const std::int32_t* target;
  const float* weight;
  const float* scalars;
  float* loss;
  std::uint32_t* faults;
};

/// exp2((z - m) * kLog2E); kShort: the exponent is one of exp2_normal.
template <bool kShort>
struct Exponential {
  float m;

  __device__ float operator()(float value) const {
    const float exponent = (value - m) * numerics::kLog2E;
    return kShort ? numerics::exp2_normal(exponent) : numerics::exp2(exponent);
  }
};

/// tree_sum of the exponentials of row t.
template <class Z, class Exponential>
__device__ float sum_of_exponentials(const Rows<Z>& z, std::int64_t t, std::int64_t cols,
                                     const Exponential& exponential) {
  struct alignas(2 * sizeof(Z)) Pair {
    Z x, y;
  };
  using Values = Team<2>::Values;
  const auto last = [&](std::int64_t i) {
    return Values{exponential(z.load(t, i)), i + 1 < cols ? exponential(z.load(t, i + 1)) : 0.0f};
  };
  const auto of_pair = [&](const Pair& pair) {
    return Values{exponential(widen(pair.x)), exponential(widen(pair.y))};
  };
  if (z.wide) {
    return block_tree_sum_of_pairs(
        cols, [&](std::int64_t i) { return *reinterpret_cast<const Pair*>(z.at(t, i)); }, of_pair,
        last);
  }
  return block_tree_sum_of_pairs(
      cols,
      [&](std::int64_t i) {
        return Pair{*z.at(t, i), *z.at(t, i + 1)};
      },
      of_pair, last);
}

/// Loss and gradient of a token whose row has the maximum exponential.m.
template <class Z, class D, class Exponential>
__device__ void token_loss(std::int64_t t, std::int64_t target, float at_target,
                           std::int64_t vocabulary, const Rows<Z>& z, const TokenData& token,
                           const Gradient<D>& gradient, const Exponential& exponential) {
  const float sum = sum_of_exponentials(z, t, vocabulary, exponential);
  const float weight = token.weight[t];
  if (threadIdx.x == 0) {
    const float below_maximum = exponential.m - at_target;
    const float nats = (numerics::log2(sum) + (below_maximum * numerics::kLog2E)) * numerics::kLn2;
    token.loss[t] = numerics::canonical_nan(nats * weight);
  }
  if (!gradient.wanted()) return;
  const float inverse = 1.0f / sum;
  const float factor = weight * token.scalars[StepScalar::kInverseTokens];
  for_each_group_of_elements(z, t, vocabulary,
                             [&](std::int64_t col, int count, const Z(&bits)[kGroup]) {
                               float values[kGroup];
                               const bool has_target = target >= col && target - col < kGroup;
#pragma unroll
                               for (int i = 0; i < kGroup; ++i) {
                                 float probability = exponential(widen(bits[i])) * inverse;
                                 if (has_target && col + i == target) probability -= 1.0f;
                                 values[i] = probability * factor;
                               }
                               gradient.rows.store_group(t, col, count, values);
                             });
}

/// A block for each token, its three passes over the row back to back: the rows at work fit into
/// the L2. dlogits may be the logits: the gradient pass reads each element before it overwrites it,
/// and what else is read of the row is read before the block's barriers.
template <class Z, class D>
__global__ void token_losses(std::int64_t vocabulary, Rows<Z> z, TokenData token,
                             Gradient<D> gradient) {
  const std::int64_t t = blockIdx.x;
  const float weight = token.weight[t];
  const std::int64_t target = weight != 0.0f ? token.target[t] : 0;
  const bool outside = weight != 0.0f && (target < 0 || target >= vocabulary);
  if (weight == 0.0f || outside) {
    if (outside && threadIdx.x == 0) report(token.faults, Fault::target_outside_vocabulary);
    if (threadIdx.x == 0) token.loss[t] = 0.0f;
    if (gradient.wanted()) gradient.zero(t, vocabulary);
    return;
  }
  const float at_target = z.load(t, target);
  const Extent extent = block_extent(z, t, vocabulary);
  if (extent.short_range) {
    token_loss(t, target, at_target, vocabulary, z, token, gradient,
               Exponential<true>{extent.maximum});
  } else {
    token_loss(t, target, at_target, vocabulary, z, token, gradient,
               Exponential<false>{extent.maximum});
  }
}

/// One block: scalars[kLossSum] += tree_sum(loss).
__global__ void add_losses(std::int64_t tokens, const float* loss, float* scalars) {
  const float sum = block_tree_sum(tokens, [loss](std::int64_t t) { return loss[t]; });
  if (threadIdx.x == 0) {
    float& total = scalars[StepScalar::kLossSum];
    total = numerics::canonical_nan(total + sum);
  }
}

struct Candidate {
  float value;
  std::int64_t index;
};

/// A later element replaces an earlier one only when it is greater. With the first element a NaN
/// nothing is greater, and any other NaN is greater than nothing: each thread starts from the first
/// element, so the order of the comparisons does not matter.
__device__ Candidate better(const Candidate& a, const Candidate& b) {
  const bool b_wins = b.value > a.value || (b.value == a.value && b.index < a.index);
  return b_wins ? b : a;
}

/// A block for each row.
template <class Z>
__global__ void row_argmax(std::int64_t cols, Rows<Z> z, std::int32_t* out) {
  __shared__ Candidate warp_best[kWarpSize];
  const std::int64_t row = blockIdx.x;
  Candidate best{z.load(row, 0), 0};
  for_each_group_of_row(cols, [&](std::int64_t col, int count) {
    float values[kGroup];
    z.load_group(row, col, count, values);
    for (int i = 0; i < kGroup; ++i) {
      if (i < count) best = better(best, {values[i], col + i});
    }
  });
  for (int span = kWarpSize / 2; span > 0; span /= 2) {
    best = better(best, {__shfl_xor_sync(kAllLanes, best.value, span),
                         __shfl_xor_sync(kAllLanes, best.index, span)});
  }
  if (lane_id() == 0) warp_best[warp_id()] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < warp_count(); ++warp) best = better(best, warp_best[warp]);
  out[row] = static_cast<std::int32_t>(best.index);
}

/// Half a warp for each chunk of the tree sum, within what a block can have.
unsigned threads_for(std::int64_t cols) {
  const std::int64_t chunks = (cols + numerics::kSumChunk - 1) / numerics::kSumChunk;
  return static_cast<unsigned>(std::clamp<std::int64_t>((chunks + 1) / 2, 4, kWarpSize)) *
         kWarpSize;
}

}  // namespace

void run(Context& context, const ops::CrossEntropy& op) {
  op.check();
  const TokenData token{op.targets.row<std::int32_t>(0), op.weights.row<float>(0),
                        op.scalars.row<float>(0), op.token_loss.row<float>(0), context.faults()};
  if (op.logits.rows > 0) {
    with_rows(
        [&]<class Z, class D>(const Rows<Z>& z, const Rows<D>& gradient) {
          token_losses<<<static_cast<unsigned>(op.logits.rows), threads_for(op.logits.cols), 0,
                         context.stream()>>>(op.logits.cols, z, token, Gradient<D>{gradient});
          check_launch("cross_entropy");
        },
        op.logits, op.dlogits);
  }
  if (op.summed.empty()) return;
  constexpr unsigned kThreads = 1024;
  add_losses<<<1, kThreads, 0, context.stream()>>>(op.summed.cols, op.summed.row<float>(0),
                                                   op.scalars.row<float>(0));
  check_launch("cross_entropy: loss sum");
}

void run(Context& context, const ops::Argmax& op) {
  op.check();
  if (op.logits.rows == 0) return;
  with_rows(
      [&]<class Z>(const Rows<Z>& z) {
        row_argmax<<<static_cast<unsigned>(op.logits.rows), 256, 0, context.stream()>>>(
            op.logits.cols, z, op.out.row<std::int32_t>(0));
        check_launch("argmax");
      },
      op.logits);
}

}  // namespace fp8lab::cuda
