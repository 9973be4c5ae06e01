// The Python package that reads run files (analysis/).
#pragma once

#include <string>

#include "src/cli/options.hpp"

namespace fp8lab::cli {

/// --python, the interpreter that runs it; `needs` are its packages in words.
void add_python(Options& options, const std::string& needs);

/// Puts the package before whatever else the interpreter finds. Throws Error where it is missing.
void set_python_path();

}  // namespace fp8lab::cli
