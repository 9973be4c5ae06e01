// The threads and the memory that the machine gives this process, and their limits.
#pragma once

#include <cstdint>
#include <string>

namespace fp8lab {

/// Returns the largest accepted number of threads: 64 for each processor of this process, at most
/// 1024. More would exhaust the machine's processes and stacks without any speedup.
int thread_limit();

/// Returns `threads`. Throws Error that starts with `what` unless it is 0 (all
/// processors) to thread_limit().
int checked_threads(std::int64_t threads, const std::string& what);

/// Returns the bytes of memory that this process can have: those of the machine, or of its control
/// group or address space if these are limited to less.
std::int64_t machine_memory();

/// Returns how many of these bytes are free now or hold file cache, which the system can drop.
std::int64_t available_memory();

/// Throws Error "WHAT needs X GiB of memory, this machine has Y GiB" if `bytes` exceeds `there`.
void require_memory(double bytes, const std::string& what,
                    double there = static_cast<double>(machine_memory()));

/// Returns a text such as "1.5 GiB".
std::string memory_text(double bytes);

}  // namespace fp8lab
