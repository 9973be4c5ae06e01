// The new tokens of a cache as tasks of attention.
#pragma once

#include <string_view>
#include <vector>

#include "emulation/cpu/attention/attention_tiles.hpp"

namespace fp8lab::cpu {

/// One q tile of a sequence's new tokens in the cache.
struct CachedTask {
  AttentionSequence sequence;
  Range queries;
};

/// Checks the counts and splits the queries of `tokens` new tokens into q tiles. `shape` must
/// outlive the tasks. Throws Error that begins with `operation`.
std::vector<CachedTask> cached_tasks(std::string_view operation, const AttentionShape& shape,
                                     std::int64_t tokens, const TensorView& query_start,
                                     const TensorView& cached);

/// Copies the rows of a task's tokens from `source`, rows of new tokens, to the cache, as bits.
void append(const CachedTask& task, const TensorView& source, const TensorView& cache);

}  // namespace fp8lab::cpu
