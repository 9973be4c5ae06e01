#include "src/train/stop_signal.hpp"

#include <csignal>

namespace fp8lab {
namespace {

std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void raise_stop(int /*signal*/) { stop.store(true); }

}  // namespace

const std::atomic<bool>& stop_flag() { return stop; }

void catch_stop_signals() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_handler = raise_stop;
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    return true;
  }();
  static_cast<void>(installed);
}

const std::atomic<bool>& stop_requested() {
  catch_stop_signals();
  return stop;
}

}  // namespace fp8lab
