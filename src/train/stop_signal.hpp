// Ctrl-C and SIGTERM request a checkpoint; a second signal of the same kind ends the process.
#pragma once

#include <atomic>

namespace fp8lab {

/// Returns the flag that the signals set after catch_stop_signals().
const std::atomic<bool>& stop_flag();

/// Installs handlers: the first SIGINT and the first SIGTERM set the flag; a second one of the same
/// kind has its default action.
void catch_stop_signals();

/// Calls catch_stop_signals() and returns stop_flag().
const std::atomic<bool>& stop_requested();

}  // namespace fp8lab
