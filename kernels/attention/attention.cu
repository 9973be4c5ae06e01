// Preparation that both attention passes share.
#include "kernels/attention/attention.cuh"

#include <algorithm>
#include <limits>
#include <string>

#include "emulation/ops/checks.hpp"

namespace fp8lab::cuda {
namespace {

/// Longest sequence: with it, positions of tiles beyond its end are still far below 2^31.
constexpr std::int64_t kMaxSequence = std::int64_t{1} << 24;

/// Finds the block starts, with one half warp for each 16 consecutive queries.
__global__ void attention_block_starts(AttentionProblem problem, std::uint32_t* faults) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kAttentionThreads + threadIdx.x;
  const int block = static_cast<int>(thread / kChainGroup);
  if (block / problem.row_blocks() >= problem.batch) return;  // uniform over 16 lanes
  const int b = block / problem.row_blocks();
  const int i = block % problem.row_blocks() * kChainGroup + static_cast<int>(thread % kChainGroup);
  int start = problem.sequence;
  if (i < problem.sequence) {
    start = problem.start(b, i);
    if (problem.document(b, i) != problem.document_start[problem.token(b, i)]) {
      atomicOr(faults, static_cast<std::uint32_t>(Fault::document_start));
    }
  }
  const unsigned lanes = 0xFFFFu << (threadIdx.x % 32 / kChainGroup * kChainGroup);
  for (int span = kChainGroup / 2; span > 0; span /= 2) {
    start = min(start, __shfl_xor_sync(lanes, start, span));
  }
  if (thread % kChainGroup == 0) problem.block_start[block] = start;
}

}  // namespace

AttentionProblem make_attention_problem(const char* operation, const AttentionShape& shape,
                                        const TensorView& document_start,
                                        std::int32_t* block_start) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  const std::int64_t tiles = (shape.sequence + kTileRows - 1) / kTileRows;
  const std::int64_t slices = (shape.head_dim + kTileRows - 1) / kTileRows;
  Checks(operation).require(
      shape.sequence <= kMaxSequence && shape.batch * shape.sequence <= kLimit / shape.heads &&
          shape.heads * shape.head_dim <= kLimit &&
          shape.batch * tiles <= kLimit / (shape.heads * slices),
      std::to_string(shape.batch) + " sequences of " + std::to_string(shape.sequence) +
          " tokens are more than the kernels index (at most 2^24 tokens a sequence, 2^31 lse)");
  const std::int64_t padded = (shape.sequence + kChainGroup - 1) / kChainGroup * kChainGroup;
  const auto integer = [](std::int64_t value) { return static_cast<int>(value); };
  AttentionProblem problem{};
  problem.batch = integer(shape.batch);
  problem.sequence = integer(shape.sequence);
  problem.heads = integer(shape.heads);
  problem.kv_heads = integer(shape.kv_heads);
  problem.head_dim = integer(shape.head_dim);
  problem.kv_tile = integer(std::min(shape.kv_tile, padded));
  problem.q_tile = integer(std::min(shape.q_tile, padded));
  problem.window = integer(shape.window > 0 ? std::min(shape.window, kMaxSequence) : kMaxSequence);
  problem.factors = attention_factors(shape);
  problem.document_start = document_start.row<const std::int32_t>(0);
  problem.block_start = block_start;
  return problem;
}

std::size_t block_start_count(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.batch * ((shape.sequence + kChainGroup - 1) / kChainGroup));
}

void find_block_starts(Context& context, const AttentionProblem& problem) {
  const std::int64_t threads = std::int64_t{problem.batch} * problem.row_blocks() * kChainGroup;
  launch_attention(context, "attention_block_starts", attention_block_starts,
                   (threads + kAttentionThreads - 1) / kAttentionThreads, 0, problem,
                   context.faults());
}

}  // namespace fp8lab::cuda
