// What the machine gives this process: threads and memory, and what is refused beyond that.
#pragma once

#include <cstdint>
#include <string>

namespace fp8lab {

/// Most threads that are accepted: 64 for each processor of this process, at most 1024. More would
/// exhaust the machine's processes and stacks without computing anything sooner.
int thread_limit();

/// `threads`. Throws Error that starts with `what` unless it is 0 (all processors) to
/// thread_limit().
int checked_threads(std::int64_t threads, const std::string& what);

/// Bytes of memory this process can have: those of the machine, or of its control group or
/// address space where these are limited to less.
std::int64_t machine_memory();

/// Bytes of it that are free now, or hold what is read again from files when it is needed.
std::int64_t available_memory();

/// Throws Error "WHAT needs X GiB of memory, this machine has Y GiB" for more than `there` bytes.
void require_memory(double bytes, const std::string& what,
                    double there = static_cast<double>(machine_memory()));

/// "1.5 GiB".
std::string memory_text(double bytes);

}  // namespace fp8lab
