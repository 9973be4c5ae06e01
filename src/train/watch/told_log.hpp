// A run file whose events are told while it is written.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "src/io/hdf5/run_log.hpp"

namespace fp8lab {

/// `log`, which also hands a line to `tell` for each event: "step 12 spike: ...", as /events has
/// it. Of each kind kLinesOfKind are told; the last of them says that more are in the run file.
/// Every other row goes on as it is.
std::unique_ptr<RunLog> told_log(std::unique_ptr<RunLog> log,
                                 std::function<void(const std::string&)> tell);

inline constexpr int kLinesOfKind = 8;

}  // namespace fp8lab
