// Ctrl-C and SIGTERM ask for a checkpoint instead of ending the process; the second of one kind
// ends it at once.
#pragma once

#include <atomic>

namespace fp8lab {

/// The flag that is raised by the signals, once they are caught.
const std::atomic<bool>& stop_flag();

/// From now on the first Ctrl-C (SIGINT) and the first SIGTERM raise the flag; another one of the
/// same kind ends the process as it would without us.
void catch_stop_signals();

/// catch_stop_signals(), then stop_flag().
const std::atomic<bool>& stop_requested();

}  // namespace fp8lab
