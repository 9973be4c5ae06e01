#include "src/cli/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>

namespace fp8lab::cli {
namespace {

constexpr double kShort = 5;  // seconds of work that stays unsaid

}  // namespace

void StudyLine::update(const std::string& text) {
  const Clock::time_point now = Clock::now();
  if (!terminal_ && dirty_ && now - printed_ < (now - began_) / 100) return;
  printed_ = now;
  dirty_ = true;
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  const std::size_t width = known ? size.ws_col - 1u : text.size();
  std::fprintf(stderr, "\r%s\033[K", text.substr(0, width).c_str());
}

void StudyLine::clear() {
  if (dirty_ && terminal_) std::fputs("\r\033[K", stderr);
  if (terminal_) dirty_ = false;
}

void print_estimate(const std::string& command, const std::string& work, double seconds) {
  if (seconds < kShort) return;
  const std::string line = fmt::format("{}: {}, about {:.0f} s\n", command, work, seconds);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

void PartsLine::begin(const std::string& part, std::size_t done, std::size_t total,
                      const char* unit) {
  const auto now = Clock::now();
  if (done == 0) {
    clear();
    phase_.begin(part);
    if (first_done_ > 0 || began_ == Clock::time_point()) began_ = now;
    first_done_ = 0;
    said_ = estimated_ = false;
    return;
  }
  phase_.begin("");
  if (first_done_ == 0) {
    first_done_ = done;
    second_ = now;
  }
  const auto seconds = [&](Clock::time_point since) {
    return std::chrono::duration<double>(now - since).count();
  };
  const bool is_known = done > first_done_ || first_ == First::alike;
  const double rate = done > first_done_
                          ? seconds(second_) / static_cast<double>(done - first_done_)
                          : seconds(began_) / static_cast<double>(done);
  const double left = is_known ? rate * static_cast<double>(total - done) : 0.0;
  if (seconds(began_) + left < kShort && !said_) return;
  const bool is_new = !said_ || (is_known && !estimated_);
  const auto interval = terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(10);
  if (!is_new && now - printed_ < interval) return;
  printed_ = now;
  said_ = true;
  estimated_ = is_known;
  const std::string rest = is_known ? fmt::format(", about {:.0f} s left", left) : "";
  const std::string line = fmt::format("{}: {} of {}{}{} done{}: {}", command_, done, total,
                                       *unit != 0 ? " " : "", unit, rest, part);
  const std::string text = terminal_ ? fmt::format("\r{}\033[K", line) : line + " ...\n";
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  dirty_ = terminal_;
}

void PartsLine::clear() {
  phase_.begin("");
  if (dirty_) std::fputs("\r\033[K", stderr);
  dirty_ = false;
}

PhaseLine::~PhaseLine() {
  begin("");
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  watcher_.join();
}

void PhaseLine::begin(const std::string& phase) {
  const std::lock_guard lock(mutex_);
  if (dirty_) std::fputs("\r\033[K", stderr);
  dirty_ = false;
  phase_ = phase;
  began_ = Clock::now();
  changed_.notify_one();
}

void PhaseLine::watch() {
  std::unique_lock lock(mutex_);
  while (!done_) {
    if (phase_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Clock::time_point began = began_;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - began);
    // Keeps the log of a busy machine free of phases that would be short elsewhere.
    const auto unsaid = std::chrono::seconds(terminal_ ? 1 : 5);
    const auto next = began + seconds + unsaid;
    const bool another =
        changed_.wait_until(lock, next, [&] { return done_ || phase_.empty() || began_ != began; });
    if (another) continue;
    say(std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - began).count());
    if (!terminal_) phase_.clear();
  }
}

void PhaseLine::say(std::int64_t seconds) {
  const std::string text = terminal_ ? fmt::format("\r{} ({} s)\033[K", phase_, seconds)
                                     : fmt::format("{} ...\n", phase_);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  dirty_ = terminal_;
}

}  // namespace fp8lab::cli
