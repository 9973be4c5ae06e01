// Shared parts of the two implementations of the backward pass, and the interface between them.
#pragma once

#include "kernels/attention/attention.cuh"

namespace fp8lab::cuda {

/// Returns the groups of 16 queries, of the tile from `query` on, that the CPU includes in dK and
/// dV of the keys from `key` on. Within each q tile these are all groups from the first to the last
/// that sees a key of the kv tile. Only in these groups can a non-finite operand show in masked
/// pairs. Preconditions: the keys belong to one kv tile; the whole warp calls it.
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
    bool before = false, after = false;  // there are active blocks at or before, and at or after
    for (int i = first + lane_id(); i < last; i += kWarpSize) {
      before = before || (active(i) && i <= block);
      after = after || (active(i) && i >= block);
    }
    if (__any_sync(kAllLanes, before) && __any_sync(kAllLanes, after)) groups |= 1u << group;
  }
  return groups;
}

/// Returns the first query of the first tile for which query_groups may return groups of `key`.
__device__ inline int first_query(const AttentionProblem& problem, int key) {
  return key / problem.kv_tile * problem.kv_tile / kTileRows * kTileRows;
}

/// Returns true if attention_backward_wgmma supports the call: bf16 operands with heads of
/// 64 or 128 columns, kv tiles of a multiple of 64 keys or one tile for all keys, tensors
/// with 16-byte aligned rows.
bool fits_wgmma(const ops::AttentionBackward& op, const AttentionProblem& problem);

/// Returns the size in bytes of the workspace of attention_backward_wgmma.
std::size_t backward_wgmma_workspace(const AttentionShape& shape);

/// Computes the backward pass on wgmma. Preconditions: problem.block_start is filled;
/// `workspace` is aligned to 256 bytes.
void attention_backward_wgmma(Context& context, const ops::AttentionBackward& op,
                              const AttentionProblem& problem, void* workspace);

}  // namespace fp8lab::cuda
