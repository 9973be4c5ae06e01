// One complete example of each kind of file, and templates that hold every key.
#pragma once

#include <string>

namespace fp8lab {

/// A file that `train --dry-run`, `recipes check` or `ablate --dry-run` accepts as it is.
std::string run_example();
std::string recipe_example();
std::string study_example();

/// The example, and after it all keys with what they mean, as comments: a file like the example.
std::string run_template();
std::string recipe_template();
std::string study_template();

}  // namespace fp8lab
