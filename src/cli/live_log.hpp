// Logs a run to TensorBoard or trackio during training, through a process of the analysis package
// that reads the run file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace fp8lab::cli {

class LiveLog {
 public:
  /// `kind` is tensorboard or trackio, `out` the folder of its files. Throws Error with the
  /// packages to install if `interpreter` lacks one.
  LiveLog(std::string kind, std::string interpreter, std::filesystem::path out);
  /// Waits for the process to write everything, and ends it.
  ~LiveLog();
  LiveLog(const LiveLog&) = delete;
  LiveLog& operator=(const LiveLog&) = delete;

  /// Starts logging; call once the run file exists. `seconds` is the run's time so far. The log
  /// already contains the steps up to `step`, from the process that trained them.
  void start(const std::filesystem::path& run_file, double seconds, std::int64_t step);

 private:
  std::string kind_, interpreter_;
  std::filesystem::path out_;
  pid_t child_ = 0;
  int input_ = -1;  ///< pipe to the process, which ends when it is closed
};

}  // namespace fp8lab::cli
