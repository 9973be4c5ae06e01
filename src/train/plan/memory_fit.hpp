// Whether a run fits into memory, and with which changes it would.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Settings with which a run needs less memory.
struct MemoryChange {
  std::vector<Assignment> assignments;
  std::int64_t bytes = 0;   ///< planned, of the stage that needs most
  double added_work = 0;    ///< share of the work of all steps (memory_fit.cpp: work_of)
  bool keeps_bits = false;  ///< the run is the same run (RunConfig::hash)
};

/// "memory.recompute=gate_up (27.6 GiB, 9.1 % more work, the same bits)".
std::string describe(const MemoryChange& change);

/// The changes of [memory], and of micro-batches to a half, a quarter, ..., with which every stage
/// of `config` needs at most `bytes`, by their work. What changes more keys than another of the
/// list, for no less work, is left out.
std::vector<MemoryChange> changes_that_fit(const RunConfig& config, const Backend& backend,
                                           std::int64_t bytes);

/// Throws Error when a stage under one of its recipes needs more memory than this machine, or the
/// device behind `backend`, has: how much, what for, how much there is, and the three cheapest
/// changes_that_fit.
void require_memory_of(const RunConfig& config, const Backend& backend);

}  // namespace fp8lab
