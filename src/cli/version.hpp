// Which code this is.
#pragma once

#include <string>

namespace fp8lab::cli {

/// Version of the project, for example "0.2.0".
std::string project_version();

/// Commit and hash of the sources of this build (.cmake/source_version.cmake).
const char* build_identity();

/// Both, "0.2.0+COMMIT.HASH": what a run file records.
std::string code_version();

}  // namespace fp8lab::cli
