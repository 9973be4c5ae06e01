// One line of progress on standard error.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

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

}  // namespace fp8lab::cli
