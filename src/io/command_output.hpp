// Runs commands of the system to completion.
#pragma once

#include <string>
#include <vector>

namespace fp8lab {

/// Exit status and output of a command; leading and trailing white space is removed.
struct CommandOutput {
  int status = 0;  ///< 128 + signal if killed
  std::string out;
  std::string error;  ///< standard error
};

/// Runs the command words[0], found in PATH, to completion, with empty standard input. `variables`,
/// each "NAME=VALUE", replace those of this process. Throws Error if the command cannot be started.
CommandOutput run_command(std::vector<std::string> words,
                          const std::vector<std::string>& variables = {});

}  // namespace fp8lab
