// Reports the current step from the process of a run to the process that runs the study.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {

/// The last completed step of a run.
struct RunStep {
  std::int64_t step = 0, total = 0;
  std::int64_t first = 1;  ///< first step of this process; greater than 1 after a resume
  double loss = 0;
  std::string stage;
};

/// Shared memory behind a file descriptor that a child inherits. Unlike a pipe it never fills up,
/// never blocks the child, and outlives the process that reads it.
class StepSlot {
 public:
  /// Throws RuntimeFailure if the memory cannot be created.
  StepSlot();

  int descriptor() const { return memory_.get(); }
  /// Returns nothing before the first step.
  std::optional<RunStep> read() const;

 private:
  FileDescriptor memory_;
};

/// Writes the step from the child. Returns false if the descriptor cannot be written.
bool write_step(int descriptor, const RunStep& step);

}  // namespace fp8lab
