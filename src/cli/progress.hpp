// What the program is at, on standard error.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace fp8lab::cli {

/// A terminal sees one line that is rewritten; elsewhere a line appears every ten seconds.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }

  void update(const std::string& text) {
    const auto now = std::chrono::steady_clock::now();
    const auto interval = terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
    if (now - printed_ < interval) return;
    printed_ = now;
    std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", text.c_str());
    dirty_ = terminal_;
  }

  void clear() {
    if (dirty_) std::fputs("\r\033[K", stderr);
    dirty_ = false;
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool dirty_ = false;
  std::chrono::steady_clock::time_point printed_ = std::chrono::steady_clock::now();
};

/// How far a study is. A terminal sees one line that is rewritten, as much of it as is wide enough;
/// elsewhere the intervals between lines grow with the time: a hundredth of it, so that the log of
/// a day is no longer than that of some minutes.
class StudyLine {
 public:
  ~StudyLine() { clear(); }

  void update(const std::string& text);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool dirty_ = false;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point printed_ = began_;
};

/// One line, before work of `seconds` begins: "attribute: 26 gradients, about 310 s". What takes
/// less than five seconds stays unsaid.
void print_estimate(const std::string& command, const std::string& work, double seconds);

/// Work in parts of about the same length, but for the first: how many are done, and from the
/// second that is done on how long the rest will take. A terminal sees one line that is rewritten;
/// elsewhere a line appears at once, with the first estimate, then every ten seconds. What takes
/// less than five seconds in all stays unsaid.
class PartsLine {
 public:
  explicit PartsLine(std::string command) : command_(std::move(command)) {}
  ~PartsLine() { clear(); }
  PartsLine(const PartsLine&) = delete;
  PartsLine& operator=(const PartsLine&) = delete;

  /// `part` begins, `done` of `total` are done.
  void begin(const std::string& part, std::size_t done, std::size_t total);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string command_;
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool dirty_ = false, said_ = false, estimated_ = false;
  Clock::time_point began_, second_, printed_;  ///< of the first part, of the second one
};

/// Names a phase that turns out to take long: on a terminal after one second, with the seconds so
/// far, until it ends; elsewhere after five, on one line. Short phases stay unsaid.
class PhaseLine {
 public:
  PhaseLine() : watcher_([this] { watch(); }) {}
  ~PhaseLine();
  PhaseLine(const PhaseLine&) = delete;
  PhaseLine& operator=(const PhaseLine&) = delete;

  /// Ends the present phase and begins another; "" begins none.
  void begin(const std::string& phase);

 private:
  using Clock = std::chrono::steady_clock;

  void watch();
  /// Prints the phase as it is after `seconds`, with the lock held.
  void say(std::int64_t seconds);

  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_;  ///< empty: none that still has to be said
  Clock::time_point began_;
  bool dirty_ = false;  ///< the terminal's line holds a phase
  bool done_ = false;
  std::thread watcher_;  // last: it reads the others
};

}  // namespace fp8lab::cli
