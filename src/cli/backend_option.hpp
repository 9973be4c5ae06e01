// --backend: the backends that a command accepts, in its help and in its refusals alike.
#pragma once

#include <string>
#include <vector>

#include "src/cli/options.hpp"
#include "src/config/config.hpp"

namespace fp8lab::cli {

/// For commands that execute runs and models.
std::vector<std::string> all_backends();

/// Without `truth`, which computes in double precision: for commands about what is quantized.
std::vector<std::string> quantizing_backends();

/// Throws Error when the backend of `run`, which `origin` says, is none that --backend accepts.
void require_accepted_backend(const Values& values, const RunConfig& run, const std::string& origin,
                              const std::string& command);

}  // namespace fp8lab::cli
