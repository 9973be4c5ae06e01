// Ctrl-C and SIGTERM ask for a checkpoint instead of ending the process.
#pragma once

#include <atomic>

namespace fp8lab {

/// Installs the handlers once and returns the flag that they raise.
const std::atomic<bool>& stop_requested();

}  // namespace fp8lab
