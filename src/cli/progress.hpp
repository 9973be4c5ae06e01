// Progress messages on standard error.
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

/// On a terminal, rewrites one line; elsewhere prints a line every ten seconds.
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

/// Progress of a study. On a terminal, rewrites one line, cut to its width. Elsewhere the interval
/// between lines grows to a hundredth of the elapsed time, so that the log of a day is no longer
/// than that of a few minutes.
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

/// Prints one line before work of `seconds` begins: "attribute: 26 gradients, about 310 s". Prints
/// nothing for less than five seconds.
void print_estimate(const std::string& command, const std::string& work, double seconds);

/// Names a phase that takes long. On a terminal it appears after one second and shows the
/// elapsed seconds until the phase ends; elsewhere one line is printed after five seconds.
/// Shorter phases are not reported.
class PhaseLine {
 public:
  PhaseLine() : watcher_([this] { watch(); }) {}
  ~PhaseLine();
  PhaseLine(const PhaseLine&) = delete;
  PhaseLine& operator=(const PhaseLine&) = delete;

  /// Ends the current phase and begins another one; "" begins none.
  void begin(const std::string& phase);

 private:
  using Clock = std::chrono::steady_clock;

  void watch();
  /// Prints the phase with its `seconds`. Precondition: the lock is held.
  void say(std::int64_t seconds);

  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string phase_;  ///< empty: nothing left to report
  Clock::time_point began_;
  bool dirty_ = false;  ///< true if the terminal's line shows a phase
  bool done_ = false;
  std::thread watcher_;  // last, since it reads the other members
};

/// Progress of work in parts of about the same length: the number of completed ones and an estimate
/// of the remaining time. On a terminal, rewrites one line; elsewhere prints a line at once, then
/// with the first estimate, then every ten seconds. The first part is named as a phase. Work of
/// less than five seconds in total is not reported.
class PartsLine {
 public:
  /// What the time of the first part tells of the others.
  enum class First : std::uint8_t {
    other,  ///< nothing: a reference, or a whole forward pass; estimates follow the second part
    alike,  ///< theirs
  };

  explicit PartsLine(std::string command, First first = First::other)
      : command_(std::move(command)), first_(first) {}
  ~PartsLine() { clear(); }
  PartsLine(const PartsLine&) = delete;
  PartsLine& operator=(const PartsLine&) = delete;

  /// Reports that `part` begins and that `done` of `total` parts, named `unit`, are complete. With
  /// none complete, other work begins.
  void begin(const std::string& part, std::size_t done, std::size_t total, const char* unit = "");
  /// begin, as a PartReport.
  auto report() {
    return [this](const std::string& part, std::size_t done, std::size_t total, const char* unit) {
      begin(part, done, total, unit);
    };
  }
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  std::string command_;
  First first_;
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool dirty_ = false, said_ = false, estimated_ = false;
  std::size_t first_done_ = 0;                  ///< parts complete after the first call; 0: none
  Clock::time_point began_, second_, printed_;  ///< start of the first and of the second part
  PhaseLine phase_;
};

}  // namespace fp8lab::cli
