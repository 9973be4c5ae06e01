#include "emulation/base/machine.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "emulation/base/input_error.hpp"

namespace fp8lab {
namespace {

constexpr int kThreadsOfProcessor = 64;
constexpr int kMostThreads = 1024;

/// Returns the number in a file of the control group file system; `fallback`
/// if there is none or "max".
std::int64_t limit_in(const std::string& file, std::int64_t fallback) {
  std::ifstream stream(file);
  std::int64_t value = 0;
  return stream >> value && value > 0 ? std::min(value, fallback) : fallback;
}

/// Returns the number after `name` in a file of lines "NAME NUMBER ...";
/// `fallback` if there is none.
std::int64_t number_of(const std::string& file, const std::string& name, std::int64_t fallback) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line);
    std::string first;
    std::int64_t value = 0;
    if (words >> first >> value && first == name) return value;
  }
  return fallback;
}

/// The files of a control group with its memory limit, its memory in use, and the parts of that.
struct ControlGroup {
  std::string limit, held, parts;
  std::string files_read, files_unread;  ///< names of the parts that are cached
                                         ///< files, recently used or not
};

/// Returns the control group of this process and its parents.
std::vector<ControlGroup> control_groups() {
  const std::string root = "/sys/fs/cgroup";
  const auto second = [](const std::string& folder) {
    return ControlGroup{folder + "/memory.max", folder + "/memory.current", folder + "/memory.stat",
                        "active_file", "inactive_file"};
  };
  const std::string first = root + "/memory/memory.";
  std::vector<ControlGroup> found = {{first + "limit_in_bytes", first + "usage_in_bytes",
                                      first + "stat", "total_active_file", "total_inactive_file"}};
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;  // version 2
    std::string path = line.substr(3);
    while (!path.empty()) {
      if (path.back() != '/') found.push_back(second(root + path));
      path.resize(path.find_last_of('/'));
    }
  }
  found.push_back(second(root));
  return found;
}

}  // namespace

int thread_limit() {
  const unsigned processors = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(std::min<unsigned>(kMostThreads, kThreadsOfProcessor * processors));
}

int checked_threads(std::int64_t threads, const std::string& what) {
  if (threads >= 0 && threads <= thread_limit()) return static_cast<int>(threads);
  throw InputError(
      {.where = what,
       .found = fmt::to_string(threads),
       .accepted = fmt::format("0 for all processors, up to {} on this machine", thread_limit())});
}

std::int64_t machine_memory() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  std::int64_t bytes = pages > 0 && page > 0 ? pages * page : INT64_MAX;
  for (const ControlGroup& group : control_groups()) bytes = limit_in(group.limit, bytes);
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = static_cast<std::int64_t>(
        std::min<std::uint64_t>(static_cast<std::uint64_t>(bytes), limit.rlim_cur));
  }
  return bytes;
}

std::int64_t available_memory() {
  std::int64_t bytes = machine_memory();
  const std::int64_t kibibytes = number_of("/proc/meminfo", "MemAvailable:", -1);
  if (kibibytes >= 0) bytes = std::min(bytes, kibibytes * 1024);
  for (const ControlGroup& group : control_groups()) {
    const std::int64_t limit = limit_in(group.limit, INT64_MAX);
    if (limit == INT64_MAX) continue;
    const std::int64_t held = limit_in(group.held, limit);
    const std::int64_t files =
        number_of(group.parts, group.files_read, 0) + number_of(group.parts, group.files_unread, 0);
    bytes = std::min(bytes, limit - held + files);
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::int64_t mapped = number_of("/proc/self/status", "VmSize:", 0) * 1024;
    bytes = std::min(bytes, static_cast<std::int64_t>(limit.rlim_cur) - mapped);
  }
  return std::max<std::int64_t>(bytes, 0);
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
