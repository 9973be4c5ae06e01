// The Python package that reads run files (analysis/).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/options.hpp"

namespace fp8lab::cli {

/// --python, the interpreter that runs it; `needs` are its packages in words.
void add_python(Options& options, const std::string& needs);

/// Puts the package before whatever else the interpreter finds. Throws Error where it is missing.
void set_python_path();

/// Whom Ctrl-C ends: program and interpreter, or the interpreter alone, which writes a last page.
enum class Interrupt : std::uint8_t { both, child };

/// Runs `module` of the package on `words` to its end, and returns its status, 0 to 2. Throws Error
/// for what is no interpreter, and RuntimeFailure for another end; `what` is then not complete.
int run_analysis(const std::string& interpreter, const std::string& module,
                 std::vector<std::string> words, const std::string& what,
                 Interrupt interrupt = Interrupt::both);

}  // namespace fp8lab::cli
