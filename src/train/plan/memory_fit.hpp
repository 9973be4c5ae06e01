// Tests whether a run fits into memory, and finds settings with which it does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// A change of settings that reduces the memory of a run.
struct MemoryChange {
  std::vector<Assignment> assignments;
  std::int64_t bytes = 0;   ///< planned bytes of the largest stage
  double added_work = 0;    ///< relative to the work of all steps (memory_fit.cpp: work_of)
  bool keeps_bits = false;  ///< the identity of the run stays the same (RunConfig::hash)
};

/// "memory.recompute=gate_up (27.6 GiB, 9.1 % more work, the same bits)".
std::string describe(const MemoryChange& change);

/// Returns the changes of [memory], and of micro-batches to a half, a quarter, ..., with which
/// every stage of `config` needs at most `bytes`, sorted by added work. Omits a change that
/// contains another one of the list and saves no work.
std::vector<MemoryChange> changes_that_fit(const RunConfig& config, const Backend& backend,
                                           std::int64_t bytes);

/// Throws Error if a stage under one of its recipes needs more memory than this machine, or the
/// device of `backend`, has. The message states the bytes needed, their use, the bytes available,
/// and the three cheapest changes_that_fit.
void require_memory_of(const RunConfig& config, const Backend& backend);

}  // namespace fp8lab
