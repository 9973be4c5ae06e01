// Per-query inputs of the attention gradients, computed once for both kernels on wgmma
// (attention_backward_wgmma.cu).
#pragma once

#include <cstring>

#include "kernels/attention/backward_tiles.cuh"

namespace fp8lab::cuda {

/// Per-query inputs of the gradients, for 64 consecutive queries of a head.
struct alignas(16) QueryFacts {
  float lse[kTileRows], delta[kTileRows];  ///< 0 past the sequence
  int start[kTileRows];         ///< first key that the query sees; kNoQuery past the sequence
  int first_start, last_start;  ///< smallest and largest start of queries in the sequence
};

/// Records, indexed by head, sequence and tile.
struct FactsTable {
  QueryFacts* data;

  __device__ QueryFacts* at(const AttentionProblem& problem, int b, int head, int query) const {
    const std::int64_t row = std::int64_t{head} * problem.batch + b;
    return data + row * problem.tiles() + query / kTileRows;
  }
};

constexpr int kFactsThreads = 4;  ///< for one query
constexpr int kLanesHeld = static_cast<int>(numerics::kLanes) / kFactsThreads;

/// Loads eight consecutive elements. Precondition: the address is a multiple of 16 bytes.
__device__ inline void load_eight(const std::uint16_t* from, float (&values)[kLanesHeld]) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(words[i] << 16);
    values[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
__device__ inline void load_eight(const float* from, float (&values)[kLanesHeld]) {
  std::memcpy(values, __builtin_assume_aligned(from, 16), sizeof values);
}

/// Returns the tree_sum of kDim products to all four threads of a query. Thread `part` computes
/// lanes 8 part .. 8 part + 7 of numerics::chunk_sum.
template <int kDim, class Out>
__device__ float row_delta(const std::uint16_t* dout, const Out* out, int part) {
  float lane[kLanesHeld] = {};
#pragma unroll
  for (int first = 0; first < kDim; first += static_cast<int>(numerics::kLanes)) {
    float x[kLanesHeld], y[kLanesHeld];
    load_eight(dout + first + kLanesHeld * part, x);
    load_eight(out + first + kLanesHeld * part, y);
#pragma unroll
    for (int i = 0; i < kLanesHeld; ++i) lane[i] += x[i] * y[i];
  }
  // Lanes 16 and 8 apart belong to threads 2 and 1 apart; both threads add the same two numbers.
#pragma unroll
  for (int span = kFactsThreads / 2; span > 0; span /= 2) {
#pragma unroll
    for (int i = 0; i < kLanesHeld; ++i) lane[i] += __shfl_xor_sync(kAllLanes, lane[i], span);
  }
#pragma unroll
  for (int span = kLanesHeld / 2; span > 0; span /= 2) {
#pragma unroll
    for (int i = 0; i < span; ++i) lane[i] += lane[i + span];
  }
  return lane[0];
}

/// Computes one record with each block.
template <int kDim, class Out>
__global__ void __launch_bounds__(kTileRows* kFactsThreads)
    query_facts_kernel(AttentionProblem problem, OperandRows<std::uint16_t> dout,
                       OperandRows<Out> out, ResultRows lse, FactsTable table) {
  __shared__ int first_start, last_start;
  int rest = static_cast<int>(blockIdx.x);
  const int head = rest % problem.heads;
  rest /= problem.heads;
  const int b = rest % problem.batch;
  const int query = rest / problem.batch * kTileRows;
  const int row = static_cast<int>(threadIdx.x) / kFactsThreads;
  const int part = static_cast<int>(threadIdx.x) % kFactsThreads;
  if (threadIdx.x == 0) {
    first_start = kNoQuery;
    last_start = 0;
  }
  __syncthreads();
  const bool inside = query + row < problem.sequence;
  const std::int64_t token = problem.token(b, inside ? query + row : query);
  const float delta = row_delta<kDim>(dout.data + token * dout.stride + head * kDim,
                                      out.data + token * out.stride + head * kDim, part);
  QueryFacts& facts = *table.at(problem, b, head, query);
  if (part == 0) {
    const int start = inside ? problem.start(b, query + row) : kNoQuery;
    facts.lse[row] = inside ? lse.load(head, token) : 0.0f;
    facts.delta[row] = inside ? delta : 0.0f;
    facts.start[row] = start;
    atomicMin(&first_start, start);
    if (inside) atomicMax(&last_start, start);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    facts.first_start = first_start;
    facts.last_start = last_start;
  }
}

}  // namespace fp8lab::cuda
