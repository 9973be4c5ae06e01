// The option --backend: one list of accepted backends for both help and error messages.
#pragma once

#include <string>
#include <vector>

#include "src/cli/options/options.hpp"
#include "src/config/config.hpp"

namespace fp8lab::cli {

/// Returns the backends of commands that execute runs and models.
std::vector<std::string> all_backends();

/// Like all_backends without `truth`, which computes in double precision: for
/// commands about quantization.
std::vector<std::string> quantizing_backends();

/// Throws Error if the backend of `run`, as set in `origin`, is not one that --backend accepts.
void require_accepted_backend(const Values& values, const RunConfig& run, const std::string& origin,
                              const std::string& command);

}  // namespace fp8lab::cli
