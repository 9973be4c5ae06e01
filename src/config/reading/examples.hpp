// One complete example of each kind of file, and templates that hold every key.
#pragma once

#include <string>

namespace fp8lab {

/// Returns an example file that `train --dry-run`, `recipes check` or `ablate
/// --dry-run` accepts unchanged.
std::string run_example();
std::string recipe_example();
std::string study_example();

/// Returns the example followed by all keys with their help, as comments. The template is
/// accepted like the example.
std::string run_template();
std::string recipe_template();
std::string study_template();

}  // namespace fp8lab
