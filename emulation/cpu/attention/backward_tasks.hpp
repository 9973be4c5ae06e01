// The backward pass of attention as tasks for threads.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/cpu/attention/attention_tiles.hpp"

namespace fp8lab::cpu {

/// The work of one task: all pairs of its kv tiles and its q tiles, for some heads of one kv head.
struct BackwardTask {
  std::int64_t b = 0;
  std::int64_t kv_head = 0;
  Range heads;  ///< query heads
  Range kv_tiles;
  Range q_tiles;
  bool keys = false;     ///< write dK and dV; needs the whole group's heads and all q tiles
  bool queries = false;  ///< write dQ; needs all kv tiles
};

/// Returns one task for each (sequence, kv head) pair if these pairs alone occupy all threads; such
/// a task computes P and dS once. Otherwise returns separate, smaller tasks for dK and dV and for
/// dQ. The bits are the same.
std::vector<BackwardTask> plan_backward(const AttentionProblem& problem);

}  // namespace fp8lab::cpu
