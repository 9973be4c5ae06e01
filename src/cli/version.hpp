// Which code this is.
#pragma once

#include <string>

namespace fp8lab::cli {

/// Version of the project, for example "0.1.0".
std::string code_version();

}  // namespace fp8lab::cli
