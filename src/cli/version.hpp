// Identifies the code of this build.
#pragma once

#include <string>

namespace fp8lab::cli {

/// Returns the version of the project, for example "0.2.0".
std::string project_version();

/// Returns commit and hash of the sources of this build (.cmake/source_version.cmake).
const char* build_identity();

/// Returns both, "0.2.0+COMMIT.HASH", as recorded in run files.
std::string code_version();

}  // namespace fp8lab::cli
