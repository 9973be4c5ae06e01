// Where a run is, told by its process to the one that runs the study.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "src/io/file_descriptor.hpp"

namespace fp8lab {

/// The last step of a run.
struct RunStep {
  std::int64_t step = 0, total = 0;
  std::int64_t first = 1;  ///< that this process took: later than 1 where it went on
  double loss = 0;
  std::string stage;
};

/// Memory behind a file descriptor that a child inherits: unlike a pipe it never fills, never
/// blocks the child, and outlives the process that reads it.
class StepSlot {
 public:
  /// Throws RuntimeFailure.
  StepSlot();

  int descriptor() const { return memory_.get(); }
  /// None before the first step.
  std::optional<RunStep> read() const;

 private:
  FileDescriptor memory_;
};

/// The child's side. False where the descriptor takes nothing.
bool write_step(int descriptor, const RunStep& step);

}  // namespace fp8lab
