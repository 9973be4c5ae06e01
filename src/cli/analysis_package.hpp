// The Python package that reads run files (analysis/).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/options/options.hpp"

namespace fp8lab::cli {

/// Adds --python, the interpreter of the package; `needs` describes the packages it requires.
void add_python(Options& options, const std::string& needs);

/// Puts the analysis and the package fp8lab, by which it opens run files, first in the
/// interpreter's search path. Throws Error if one is missing.
void set_python_path();

/// The processes that Ctrl-C ends: program and interpreter, or only the interpreter, which
/// then writes a last page.
enum class Interrupt : std::uint8_t { both, child };

/// Runs `module` of the package with the arguments `words` to completion, and returns its status, 0
/// to 2. Throws Error if the interpreter cannot be started, and RuntimeFailure if it ends
/// otherwise; `what` is then incomplete.
int run_analysis(const std::string& interpreter, const std::string& module,
                 std::vector<std::string> words, const std::string& what,
                 Interrupt interrupt = Interrupt::both);

}  // namespace fp8lab::cli
