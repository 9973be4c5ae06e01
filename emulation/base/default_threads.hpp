// How many processors and threads this process gets unless it is told otherwise.
#pragma once

#include <string>

namespace fp8lab {

/// Processors that this process may use at once: those it is bound to (sched_getaffinity), or fewer
/// where its control group has a quota of CPU time (cpu.max, or cpu.cfs_quota_us of version 1;
/// parts of a processor count as one). At least 1.
int available_processors();

/// Threads of a command that is given none: OMP_NUM_THREADS where that is set, its first number,
/// else available_processors(). Throws Error for another OMP_NUM_THREADS than 1 to thread_limit().
int default_threads();

/// The quota of a control group and those around it in processors, rounded up; `otherwise` where
/// none is smaller. `groups` is a file as /proc/self/cgroup, `root` where the groups are mounted.
int processors_of_control_groups(const std::string& groups, const std::string& root, int otherwise);

}  // namespace fp8lab
