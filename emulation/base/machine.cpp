#include "emulation/base/machine.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

constexpr int kThreadsOfProcessor = 64;
constexpr int kMostThreads = 1024;

/// The number in a file of the control group file system; `fallback` where there is none or "max".
std::int64_t limit_in(const std::string& file, std::int64_t fallback) {
  std::ifstream stream(file);
  std::int64_t value = 0;
  return stream >> value && value > 0 ? std::min(value, fallback) : fallback;
}

/// The memory limit of this process's control group and of those around it.
std::int64_t control_group_limit(std::int64_t fallback) {
  const std::string root = "/sys/fs/cgroup";
  fallback = limit_in(root + "/memory/memory.limit_in_bytes", fallback);
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;  // version 2
    std::string path = line.substr(3);
    while (!path.empty()) {
      if (path.back() != '/') fallback = limit_in(root + path + "/memory.max", fallback);
      path.resize(path.find_last_of('/'));
    }
  }
  return limit_in(root + "/memory.max", fallback);
}

}  // namespace

int thread_limit() {
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(std::min<unsigned>(kMostThreads, kThreadsOfProcessor * processors));
}

int checked_threads(std::int64_t threads, const std::string& what) {
  if (threads >= 0 && threads <= thread_limit()) return static_cast<int>(threads);
  throw Error(fmt::format("{}: {}; accepted: 0 for all processors, up to {} on this machine", what,
                          threads, thread_limit()));
}

std::int64_t machine_memory() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  std::int64_t bytes = pages > 0 && page > 0 ? pages * page : INT64_MAX;
  bytes = control_group_limit(bytes);
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = static_cast<std::int64_t>(
        std::min<std::uint64_t>(static_cast<std::uint64_t>(bytes), limit.rlim_cur));
  }
  return bytes;
}

void require_memory(double bytes, const std::string& what, double there) {
  if (bytes <= there) return;
  throw Error(fmt::format("{} needs {} of memory, this machine has {}", what, memory_text(bytes),
                          memory_text(there)));
}

std::string memory_text(double bytes) {
  constexpr std::array<const char*, 7> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024.0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024.0;
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

}  // namespace fp8lab
