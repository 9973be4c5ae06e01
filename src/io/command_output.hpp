// Commands of the system, run to their end.
#pragma once

#include <string>
#include <vector>

namespace fp8lab {

/// How a command ended and what it said, without white space at the ends.
struct CommandOutput {
  int status = 0;  ///< 128 + signal when killed
  std::string out;
  std::string error;  ///< its standard error
};

/// Runs the command words[0], found in PATH, to its end, with nothing on standard input.
/// `variables`, each "NAME=VALUE", replace those of this process. Throws Error when it cannot be
/// started.
CommandOutput run_command(std::vector<std::string> words,
                          const std::vector<std::string>& variables = {});

}  // namespace fp8lab
