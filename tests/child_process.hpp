// Child processes for tests of what survives a kill. The parent must not have used HDF5 on the same
// file before the fork, since a forked library state is not a second process to the library.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>

/// Runs `work(pipe)` in a forked process; `pipe` carries numbers to the parent and back.
class ChildProcess {
 public:
  /// Each side's end of two pipes.
  struct Channel {
    int in = -1;
    int out = -1;
    /// False when the other side is gone.
    bool send(std::int64_t value) const {
      return ::write(out, &value, sizeof value) == static_cast<ssize_t>(sizeof value);
    }
    /// -1 when the other side is gone.
    std::int64_t receive() const {
      std::int64_t value = 0;
      return ::read(in, &value, sizeof value) == static_cast<ssize_t>(sizeof value) ? value : -1;
    }
  };

  template <class Work>
  explicit ChildProcess(Work work) {
    std::array<int, 2> down{};
    std::array<int, 2> up{};
    if (::pipe(down.data()) != 0 || ::pipe(up.data()) != 0) return;
    process_ = ::fork();
    if (process_ == 0) {
      ::close(down[1]);
      ::close(up[0]);
      int status = 99;
      try {
        status = work(Channel{down[0], up[1]});
      } catch (...) {
      }
      ::_exit(status);
    }
    ::close(down[0]);
    ::close(up[1]);
    channel_ = {up[0], down[1]};
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    kill();
    ::close(channel_.in);
    ::close(channel_.out);
  }

  const Channel& channel() const { return channel_; }
  void kill() {
    if (process_ > 0) ::kill(process_, SIGKILL);
    wait();
  }
  /// Exit status; 99 after an exception, -1 after a signal.
  int wait() {
    if (process_ <= 0) return -1;
    int status = 0;
    ::waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t process_ = -1;
  Channel channel_;
};
