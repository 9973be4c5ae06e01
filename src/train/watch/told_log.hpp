// A run log that prints its events while it is written.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// Forwards all rows to `log`, and calls `tell` with a line for each event: "step 12 spike: ...".
/// Prints at most kLinesOfKind events of a kind; the last line says that more are in the run file.
std::unique_ptr<RunLog> told_log(std::unique_ptr<RunLog> log,
                                 std::function<void(const std::string&)> tell);

inline constexpr int kLinesOfKind = 8;

}  // namespace fp8lab
