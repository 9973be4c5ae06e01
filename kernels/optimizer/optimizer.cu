#include <cstdint>

#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr float kSmallestNormal = 0x1p-126f;

/// Four elements of a gradient are loaded at a time.
using Quads = Team<4>;
constexpr unsigned kSumThreads = 64, kTotalThreads = 1024;

/// Sums of g * g over the chunks of the tree sum, a team for each.
template <class G>
__global__ void __launch_bounds__(kSumThreads, 8)
    square_chunk_sums(std::int64_t n, Rows<G> gradient, float* sums) {
  struct alignas(4 * sizeof(G)) Quad {
    G of[4];
  };
  const auto squares = [](const Quad& quad) {
    Quads::Values values;
#pragma unroll
    for (int i = 0; i < 4; ++i) values.of[i] = widen(quad.of[i]) * widen(quad.of[i]);
    return values;
  };
  const auto load_some = [&](std::int64_t i) {
    Quad quad{};
    for (int j = 0; j < 4 && i + j < n; ++j) quad.of[j] = *gradient.at(0, i + j);
    return quad;
  };
  const auto last = [&](std::int64_t i) { return squares(load_some(i)); };
  const auto load = [&](std::int64_t i) {
    return *reinterpret_cast<const Quad*>(gradient.at(0, i));
  };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Quads::count();
  for (std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * Quads::count() + Quads::id();
       chunk * numerics::kSumChunk < n; chunk += step) {
    const std::int64_t first = chunk * numerics::kSumChunk, end = chunk_end(chunk, n);
    const float sum = gradient.wide ? Quads::chunk_sum<16>(first, end, load, squares, last)
                                    : Quads::chunk_sum<1>(first, end, load_some, squares, last);
    if (Quads::rank() == 0) sums[chunk] = sum;
  }
}

/// One block. The tree sum of all elements is the tree sum of the sums of its chunks. Zeros after
/// the last one, which change nothing, keep as many loads under way there as before.
__global__ void __launch_bounds__(kTotalThreads, 1)
    add_square_sums(std::int64_t chunks, const float* sums, float* scalars) {
  constexpr int kTogether = 32;
  using Singles = Team<1>;
  const auto load = [&](std::int64_t i) { return i < chunks ? sums[i] : 0.0f; };
  const auto values = [](float sum) { return Singles::Values{sum}; };
  const auto last = [&](std::int64_t i) { return values(load(i)); };
  const float sum = block_sum_of_chunks(
      chunks, Singles::id(), Singles::count(), Singles::rank() == 0, [&](std::int64_t chunk) {
        constexpr std::int64_t kRound = kTogether * kWarpSize;
        const std::int64_t end = (chunk_end(chunk, chunks) + kRound - 1) / kRound * kRound;
        return Singles::chunk_sum<kTogether>(chunk * numerics::kSumChunk, end, load, values, last);
      });
  if (threadIdx.x == 0) {
    float& total = scalars[StepScalar::kGradNormSquared];
    total = numerics::canonical_nan(total + sum);
  }
}

__device__ float next_power(float power, float beta) {
  const float next = (power == 0.0f ? 1.0f : power) * beta;
  return next > kSmallestNormal ? next : kSmallestNormal;
}

/// One thread: four numbers.
__global__ void update_scalars(UpdateSpec spec, float* s) {
  const float norm = __fsqrt_rn(s[StepScalar::kGradNormSquared]);
  const float ratio = spec.clip_norm / (norm + 1e-6f);
  s[StepScalar::kGradNorm] = numerics::canonical_nan(norm);
  s[StepScalar::kClipFactor] = spec.clip_norm > 0.0f && ratio < 1.0f ? ratio : 1.0f;
  s[StepScalar::kBeta1Power] = next_power(s[StepScalar::kBeta1Power], spec.beta1);
  s[StepScalar::kBeta2Power] = next_power(s[StepScalar::kBeta2Power], spec.beta2);
}

template <class P, class G, class M, class V>
struct State {
  Rows<P> master;
  Rows<G> gradient;
  Rows<M> first_moment;
  Rows<V> second_moment;
  Rows<std::uint16_t> working;  ///< data is null when there is none
};

template <class P, class G, class M, class V>
__device__ void update_group(const UpdateSpec& spec, const UpdateFactors& f,
                             const State<P, G, M, V>& state, std::int64_t first, int count) {
  float p[kGroup], g[kGroup], m[kGroup], v[kGroup];
  state.master.load_group(0, first, count, p);
  state.gradient.load_group(0, first, count, g);
  state.first_moment.load_group(0, first, count, m);
  state.second_moment.load_group(0, first, count, v);
  for (int i = 0; i < kGroup; ++i) {
    const float decayed = p[i] * f.decay;
    const float clipped = g[i] * f.clip;
    m[i] = (spec.beta1 * m[i]) + (f.one_minus_beta1 * clipped);
    v[i] = (spec.beta2 * v[i]) + ((f.one_minus_beta2 * clipped) * clipped);
    m[i] = widen(narrow<M>(m[i]));  // the update uses the moments as they are stored
    v[i] = widen(narrow<V>(v[i]));
    const float denominator = (__fsqrt_rn(v[i]) / f.root) + spec.epsilon;
    p[i] = decayed - (f.first_rate * (m[i] / denominator));
  }
  state.first_moment.store_group(0, first, count, m);
  state.second_moment.store_group(0, first, count, v);
  state.master.store_group(0, first, count, p);
  if (state.working.data != nullptr) state.working.store_group(0, first, count, p);
}

template <class P, class G, class M, class V>
__global__ void update(UpdateSpec spec, const float* scalars, float decay_mask, std::int64_t n,
                       State<P, G, M, V> state) {
  // The scalars lie in device memory, so every thread derives the factors itself, once for all of
  // its groups.
  const UpdateFactors factors = update_factors(spec, scalars, decay_mask);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kGroup;
  for (std::int64_t first =
           (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kGroup;
       first < n; first += step) {
    const int count = n - first < kGroup ? static_cast<int>(n - first) : kGroup;
    update_group(spec, factors, state, first, count);
  }
}

}  // namespace

void run(Context& context, const ops::AccumulateSquareSum& op) {
  op.check();
  constexpr std::int64_t kTeams = kSumThreads / Quads::kThreads;
  const std::int64_t n = op.gradient.size();
  const std::int64_t chunks = (n + numerics::kSumChunk - 1) / numerics::kSumChunk;
  auto* sums =
      static_cast<float*>(context.workspace(static_cast<std::size_t>(chunks) * sizeof(float)));
  if (chunks > 0) {
    const std::int64_t enough = static_cast<std::int64_t>(context.multiprocessors()) * 32;
    with_rows(
        [&](const auto& gradient) {
          square_chunk_sums<<<grid_size((chunks + kTeams - 1) / kTeams, enough), kSumThreads, 0,
                              context.stream()>>>(n, gradient, sums);
        },
        op.gradient.flat());
    check_launch("accumulate_square_sum");
  }
  add_square_sums<<<1, kTotalThreads, 0, context.stream()>>>(chunks, sums,
                                                             op.scalars.row<float>(0));
  check_launch("accumulate_square_sum: total");
}

void run(Context& context, const ops::BeginUpdate& op) {
  op.check();
  update_scalars<<<1, 1, 0, context.stream()>>>(op.spec, op.scalars.row<float>(0));
  check_launch("begin_update");
}

void run(Context& context, const ops::AdamW& op) {
  op.check();
  const std::int64_t n = op.tensors.master.size();
  if (n == 0) return;
  const Rows<std::uint16_t> working = op.tensors.working.empty()
                                          ? Rows<std::uint16_t>{}
                                          : rows_of<std::uint16_t>(op.tensors.working.flat());
  with_rows(
      [&]<class P, class G, class M, class V>(const Rows<P>& master, const Rows<G>& gradient,
                                              const Rows<M>& first_moment,
                                              const Rows<V>& second_moment) {
        const State<P, G, M, V> state{master, gradient, first_moment, second_moment, working};
        constexpr unsigned kThreads = 256;
        constexpr std::int64_t kPerBlock = kThreads * kGroup;
        const std::int64_t enough = static_cast<std::int64_t>(context.multiprocessors()) * 32;
        update<<<grid_size((n + kPerBlock - 1) / kPerBlock, enough), kThreads, 0,
                 context.stream()>>>(op.spec, op.scalars.row<float>(0), op.decay_mask, n, state);
        check_launch("adamw");
      },
      op.tensors.master.flat(), op.tensors.gradient.flat(), op.tensors.first_moment.flat(),
      op.tensors.second_moment.flat());
}

}  // namespace fp8lab::cuda
