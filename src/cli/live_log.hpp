// What a run logs, for TensorBoard or trackio, while it trains: a process of the analysis package
// that reads the run file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace fp8lab::cli {

class LiveLog {
 public:
  /// `kind` is tensorboard or trackio, `out` where their files go. Throws Error with what to
  /// install where `interpreter` lacks a package.
  LiveLog(std::string kind, std::string interpreter, std::filesystem::path out);
  /// Ends the process once it has written everything.
  ~LiveLog();
  LiveLog(const LiveLog&) = delete;
  LiveLog& operator=(const LiveLog&) = delete;

  /// The run file is there; `seconds` is the run's time so far, and steps to `step` are in the
  /// files of the process that trained them.
  void start(const std::filesystem::path& run_file, double seconds, std::int64_t step);

 private:
  std::string kind_, interpreter_;
  std::filesystem::path out_;
  pid_t child_ = 0;
  int input_ = -1;  ///< of the process, which ends when this is closed
};

}  // namespace fp8lab::cli
