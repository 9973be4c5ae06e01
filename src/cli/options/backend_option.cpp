#include "src/cli/options/backend_option.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "emulation/base/input_error.hpp"
#include "src/config/config_names.hpp"

namespace fp8lab::cli {

std::vector<std::string> all_backends() { return {kBackendNames.begin(), kBackendNames.end()}; }

std::vector<std::string> quantizing_backends() { return {"cpu", "cuda"}; }

void require_accepted_backend(const Values& values, const RunConfig& run, const std::string& origin,
                              const std::string& command) {
  const std::vector<std::string>& accepted = values.accepted("backend");
  if (std::find(accepted.begin(), accepted.end(), run.backend) != accepted.end()) return;
  throw InputError({.where = command,
                    .reason = fmt::format("{} has backend {}", origin, run.backend),
                    .accepted = fmt::format("--backend {}", alternatives(accepted))});
}

}  // namespace fp8lab::cli
