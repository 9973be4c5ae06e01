#include "src/cli/wait_policy.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace fp8lab::cli {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

// GOMP_SPINCOUNT overrides the policy in GCC's runtime, KMP_BLOCKTIME in LLVM's. The count
// corresponds to some tenths of a millisecond: longer than most waits between two operations,
// shorter than a time slice.
constexpr std::array kSettings = {Setting{"OMP_WAIT_POLICY", "passive"},
                                  Setting{"GOMP_SPINCOUNT", "5000"}, Setting{"KMP_BLOCKTIME", "0"}};

bool is_set(const Setting& setting) {
  const char* value = std::getenv(setting.name);
  return value != nullptr && std::string(value) == setting.value;
}

}  // namespace

void sleep_when_idle(char** argv) {
  bool all_set = true;
  for (const Setting& setting : kSettings) {
    if (is_set(setting)) continue;
    all_set = false;
    setenv(setting.name, setting.value, 1);
  }
  if (all_set) return;
  std::error_code failed;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (!failed) execv(program.c_str(), argv);
}

}  // namespace fp8lab::cli
