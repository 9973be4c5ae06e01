// What the two ways of computing the backward pass share, and the seam between them.
#pragma once

#include "kernels/attention/attention.cuh"

namespace fp8lab::cuda {

/// The groups of 16 queries of the tile from `query` on that the CPU brings into dK and dV of the
/// keys from `key` on, all of one kv tile: within each q tile those from the first to the last that
/// sees a key of the kv tile. Only there can an operand that is not finite show in masked pairs.
/// Whole warp.
__device__ inline unsigned query_groups(const AttentionProblem& problem, int b, int query,
                                        int key) {
  if (key >= problem.sequence) return 0;
  const std::int32_t* starts = problem.block_start + b * problem.row_blocks();
  const int first_key = key / problem.kv_tile * problem.kv_tile;
  const int last_key = min(first_key + problem.kv_tile, problem.sequence);
  const int width = problem.q_tile / kChainGroup;
  const auto active = [&](int block) {
    return max(starts[block], first_key) < min((block + 1) * kChainGroup, last_key);
  };
  const int own = query / kChainGroup + lane_id() % (kTileRows / kChainGroup);
  if (__all_sync(kAllLanes, own < problem.row_blocks() && active(own))) {
    return group_bits(kTileRows);
  }
  unsigned groups = 0;
  for (int group = 0; group < kTileRows / kChainGroup; ++group) {
    const int block = query / kChainGroup + group;
    if (block >= problem.row_blocks()) break;
    const int first = block / width * width;
    const int last = min(first + width, problem.row_blocks());
    bool before = false, after = false;  // active blocks at or before, at or after
    for (int i = first + lane_id(); i < last; i += kWarpSize) {
      before = before || (active(i) && i <= block);
      after = after || (active(i) && i >= block);
    }
    if (__any_sync(kAllLanes, before) && __any_sync(kAllLanes, after)) groups |= 1u << group;
  }
  return groups;
}

/// First query of the tiles that may hold one that query_groups gives for `key`.
__device__ inline int first_query(const AttentionProblem& problem, int key) {
  return key / problem.kv_tile * problem.kv_tile / kTileRows * kTileRows;
}

/// Whether attention_backward_wgmma takes a call: bf16 operands with heads of 64 or 128 columns,
/// whole kv tiles of 64 keys or all keys in one, tensors whose rows are 16-byte aligned.
bool fits_wgmma(const ops::AttentionBackward& op, const AttentionProblem& problem);

/// Bytes of the workspace that it needs.
std::size_t backward_wgmma_workspace(const AttentionShape& shape);

/// The backward pass on wgmma; problem.block_start is filled. `workspace` is 256-byte aligned.
void attention_backward_wgmma(Context& context, const ops::AttentionBackward& op,
                              const AttentionProblem& problem, void* workspace);

}  // namespace fp8lab::cuda
