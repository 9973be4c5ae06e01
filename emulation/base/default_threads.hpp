// Default numbers of processors and threads of this process.
#pragma once

#include <string>

namespace fp8lab {

/// Returns the number of processors that this process may use at once: those it is bound to
/// (sched_getaffinity), or fewer if its control group has a quota of CPU time (cpu.max, or
/// cpu.cfs_quota_us of version 1; parts of a processor count as one). At least 1.
int available_processors();

/// Returns the default number of threads of a command: the first number of OMP_NUM_THREADS if it is
/// set, else available_processors(). Throws Error if OMP_NUM_THREADS is not 1 to thread_limit().
int default_threads();

/// Returns the quota of a control group and its parents in processors, rounded up;
/// `otherwise` if none is smaller. `groups` is a file like /proc/self/cgroup, `root` the
/// mount point of the groups.
int processors_of_control_groups(const std::string& groups, const std::string& root, int otherwise);

}  // namespace fp8lab
