#include "emulation/base/default_threads.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "emulation/base/machine.hpp"

namespace fp8lab {
namespace {

constexpr int kMostProcessors = 1 << 16;

int bound_processors() {
  for (int most = 1024; most <= kMostProcessors; most *= 4) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(most));
    if (set == nullptr) break;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(most));
    const int count = ::sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// Returns a quota of `quota` microseconds in every `period` as processors;
/// `otherwise` if there is no quota.
int processors_of(std::int64_t quota, std::int64_t period, int otherwise) {
  if (quota <= 0 || period <= 0) return otherwise;
  const std::int64_t whole = (quota - 1) / period + 1;
  return static_cast<int>(std::min<std::int64_t>(whole, otherwise));
}

std::int64_t number_in(const std::string& file) {
  std::ifstream stream(file);
  std::int64_t number = -1;
  stream >> number;
  return stream ? number : -1;
}

/// Reads a quota of version 2: "max 100000" or "150000 100000".
int quota_in(const std::string& folder, int otherwise) {
  std::ifstream stream(folder + "/cpu.max");
  std::int64_t quota = -1, period = -1;
  stream >> quota >> period;
  return stream ? processors_of(quota, period, otherwise) : otherwise;
}

int old_quota_in(const std::string& folder, int otherwise) {
  return processors_of(number_in(folder + "/cpu.cfs_quota_us"),
                       number_in(folder + "/cpu.cfs_period_us"), otherwise);
}

/// Returns the folders of a group and of its parents, up to `mount` itself.
std::vector<std::string> folders_of(const std::string& mount, std::string path) {
  std::vector<std::string> folders;
  while (!path.empty()) {
    if (path.back() != '/') folders.push_back(mount + path);
    path.resize(path.find_last_of('/'));
  }
  folders.push_back(mount);
  return folders;
}

/// Returns whether "cpu" is in a list such as "cpu,cpuacct".
bool names_cpu(const std::string& controllers) {
  std::istringstream words(controllers);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "cpu") return true;
  }
  return false;
}

}  // namespace

int processors_of_control_groups(const std::string& groups, const std::string& root,
                                 int otherwise) {
  int processors = quota_in(root, otherwise);
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {  // NUMBER:CONTROLLERS:/PATH
    const std::size_t first = line.find(':'), second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const std::string& folder : folders_of(root, path)) {
        processors = quota_in(folder, processors);
      }
    } else if (names_cpu(controllers)) {
      for (const std::string& mount : {root + "/cpu", root + "/" + controllers}) {
        for (const std::string& folder : folders_of(mount, path)) {
          processors = old_quota_in(folder, processors);
        }
      }
    }
  }
  return std::max(1, processors);
}

int available_processors() {
  return processors_of_control_groups("/proc/self/cgroup", "/sys/fs/cgroup", bound_processors());
}

int default_threads() {
  const char* const given = std::getenv("OMP_NUM_THREADS");
  if (given == nullptr) return available_processors();
  // Further numbers of a list are for nested loops, which do not exist here.
  std::string_view text = given;
  text = text.substr(0, text.find(','));
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  std::int64_t threads = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, threads);
  const bool is_number = error == std::errc{} && last == end;
  if (!is_number || threads < 1 || threads > thread_limit()) {
    throw InputError(
        {.where = "OMP_NUM_THREADS",
         .found = given,
         .accepted = "1 to " + std::to_string(thread_limit()) + " on this machine, or not set"});
  }
  return static_cast<int>(threads);
}

}  // namespace fp8lab
