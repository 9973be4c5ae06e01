#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr float kSmallestNormal = 0x1p-126f;

/// A thread loads four elements of a gradient at a time.
using Quads = Team<4>;
constexpr unsigned kSumThreads = 64, kTotalThreads = 1024;

/// The gradients whose squares one launch sums.
struct SummedGradients {
  static constexpr int kMost = 96;  // fits into the 4 KB of a kernel's arguments

  struct Tensor {
    const void* data;
    std::int64_t size;
    std::int64_t first_chunk;  ///< number of chunks of the tensors before it
    bool bf16;                 ///< else f32
    bool wide;                 ///< as Rows::wide

    __device__ std::int64_t chunks() const {
      return (size + numerics::kSumChunk - 1) / numerics::kSumChunk;
    }
  };
  Tensor tensors[kMost];
  int count;
  std::int64_t chunks;  ///< total number

  /// Returns the tensor that contains `chunk`: the last one that begins at or before it.
  __device__ const Tensor& owner(std::int64_t chunk) const {
    int first = 0, last = count - 1;
    while (first < last) {
      const int middle = (first + last + 1) / 2;
      if (tensors[middle].first_chunk <= chunk) {
        first = middle;
      } else {
        last = middle - 1;
      }
    }
    return tensors[first];
  }
};

/// Returns the sum of g * g over one chunk of n elements to the thread of rank 0.
template <class G>
__device__ float square_sum(const G* gradient, std::int64_t n, std::int64_t chunk, bool wide) {
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
    for (int j = 0; j < 4 && i + j < n; ++j) quad.of[j] = gradient[i + j];
    return quad;
  };
  const auto last = [&](std::int64_t i) { return squares(load_some(i)); };
  const auto load = [&](std::int64_t i) { return *reinterpret_cast<const Quad*>(gradient + i); };
  const std::int64_t first = chunk * numerics::kSumChunk, end = chunk_end(chunk, n);
  return wide ? Quads::chunk_sum<16>(first, end, load, squares, last)
              : Quads::chunk_sum<1>(first, end, load_some, squares, last);
}

/// Sums each chunk with one team.
__global__ void __launch_bounds__(kSumThreads, 8)
    square_chunk_sums(const __grid_constant__ SummedGradients gradients, float* sums) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Quads::count();
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * Quads::count() + Quads::id();
       i < gradients.chunks; i += step) {
    const SummedGradients::Tensor& tensor = gradients.owner(i);
    const std::int64_t chunk = i - tensor.first_chunk;
    const float sum = tensor.bf16 ? square_sum(static_cast<const std::uint16_t*>(tensor.data),
                                               tensor.size, chunk, tensor.wide)
                                  : square_sum(static_cast<const float*>(tensor.data), tensor.size,
                                               chunk, tensor.wide);
    if (Quads::rank() == 0) sums[i] = sum;
  }
}

/// Sums each tensor with one block: the tree sum of its elements is the tree sum of the sums of its
/// chunks. Zeros are added after the last chunk; they do not change the sum, and keep the number of
/// outstanding loads constant.
__global__ void __launch_bounds__(kTotalThreads, 1)
    tensor_square_sums(const __grid_constant__ SummedGradients gradients, const float* sums,
                       float* of_tensor) {
  constexpr int kTogether = 32;
  using Singles = Team<1>;
  const SummedGradients::Tensor& tensor = gradients.tensors[blockIdx.x];
  const std::int64_t chunks = tensor.chunks();
  sums += tensor.first_chunk;
  const auto load = [&](std::int64_t i) { return i < chunks ? sums[i] : 0.0f; };
  const auto values = [](float sum) { return Singles::Values{sum}; };
  const auto last = [&](std::int64_t i) { return values(load(i)); };
  const float sum = block_sum_of_chunks(
      chunks, Singles::id(), Singles::count(), Singles::rank() == 0, [&](std::int64_t chunk) {
        constexpr std::int64_t kRound = kTogether * kWarpSize;
        const std::int64_t end = (chunk_end(chunk, chunks) + kRound - 1) / kRound * kRound;
        return Singles::chunk_sum<kTogether>(chunk * numerics::kSumChunk, end, load, values, last);
      });
  if (threadIdx.x == 0) of_tensor[blockIdx.x] = sum;
}

/// Adds the tensors in their order, with one block of one warp.
__global__ void add_square_sums(int tensors, const float* of_tensor, float* scalars) {
  __shared__ float sums[SummedGradients::kMost];
  for (int i = static_cast<int>(threadIdx.x); i < tensors; i += kWarpSize) sums[i] = of_tensor[i];
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = scalars[StepScalar::kGradNormSquared];
  for (int i = 0; i < tensors; ++i) total = numerics::canonical_nan(total + sums[i]);
  scalars[StepScalar::kGradNormSquared] = total;
}

__device__ float next_power(float power, float beta) {
  const float next = (power == 0.0f ? 1.0f : power) * beta;
  return next > kSmallestNormal ? next : kSmallestNormal;
}

/// Computes four numbers in one thread.
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
  Rows<std::uint16_t> working;  ///< its data is null if there is none
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
    m[i] = widen(narrow<M>(m[i]));  // the update uses the moments as stored
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
  // The scalars are in device memory, so every thread derives the factors itself,
  // once for all of its groups.
  const UpdateFactors factors = update_factors(spec, scalars, decay_mask);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kGroup;
  for (std::int64_t first =
           (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kGroup;
       first < n; first += step) {
    const int count = n - first < kGroup ? static_cast<int>(n - first) : kGroup;
    update_group(spec, factors, state, first, count);
  }
}

/// Adds the squares of the gradients. Precondition: at most SummedGradients::kMost of them.
void add_squares(Context& context, std::span<const TensorView> gradients, float* scalars) {
  constexpr std::int64_t kTeams = kSumThreads / Quads::kThreads;
  SummedGradients summed{};
  for (const TensorView& gradient : gradients) {
    with_rows(
        [&](const auto& rows) {
          const std::int64_t size = gradient.size();
          summed.tensors[summed.count++] = {rows.data, size, summed.chunks,
                                            gradient.dtype == DType::bf16, rows.wide};
          summed.chunks += (size + numerics::kSumChunk - 1) / numerics::kSumChunk;
        },
        gradient.flat());
  }
  auto* of_tensor = static_cast<float*>(context.workspace(
      (SummedGradients::kMost + static_cast<std::size_t>(summed.chunks)) * sizeof(float)));
  float* sums = of_tensor + SummedGradients::kMost;
  const std::int64_t enough = static_cast<std::int64_t>(context.multiprocessors()) * 32;
  square_chunk_sums<<<grid_size((summed.chunks + kTeams - 1) / kTeams, enough), kSumThreads, 0,
                      context.stream()>>>(summed, sums);
  check_launch("accumulate_square_sum");
  const auto tensors = static_cast<unsigned>(summed.count);
  tensor_square_sums<<<tensors, kTotalThreads, 0, context.stream()>>>(summed, sums, of_tensor);
  check_launch("accumulate_square_sum: tensors");
  add_square_sums<<<1, kWarpSize, 0, context.stream()>>>(summed.count, of_tensor, scalars);
  check_launch("accumulate_square_sum: total");
}

}  // namespace

void run(Context& context, const ops::AccumulateSquareSum& op) {
  op.check();
  std::span<const TensorView> left = op.gradients;
  while (!left.empty()) {
    const std::size_t count = std::min(left.size(), std::size_t{SummedGradients::kMost});
    add_squares(context, left.first(count), op.scalars.row<float>(0));
    left = left.subspan(count);
  }
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
