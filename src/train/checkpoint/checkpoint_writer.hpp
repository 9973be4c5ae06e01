// Writes checkpoints while the run continues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "src/io/files/background_file.hpp"
#include "src/io/files/page_memory.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/train/checkpoint/checkpoint.hpp"

namespace fp8lab {

/// Returns the size of the host buffer for a checkpoint of `bytes`: all of it, but at most half of
/// the memory that is free once the run has allocated `to_come` more. With a smaller buffer the
/// copy waits for the disk, and only the last buffer is written during the next steps.
std::size_t checkpoint_memory(std::uint64_t bytes, std::int64_t to_come);

/// Writes the checkpoints of a run, one at a time. Each replaces the previous one.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::filesystem::path path);

  /// Allocates the buffer for checkpoints of `scope` and touches its pages on threads of its own,
  /// which takes seconds for a large model; begin() waits for them. `to_come`: as for begin().
  void prepare(const CheckpointScope& scope, std::int64_t to_come);

  /// Copies `scope` and `position` except its seconds, then writes them on threads of its own; the
  /// file is complete on the disk when end() returns. Precondition: no checkpoint is being written.
  /// `identity`: of the run (identity.hpp). `recipe`: of the quantizers. `to_come`: bytes of host
  /// memory that the run has yet to allocate. Every tensor and the header have an XXH3-64 in the
  /// file. Throws Error if writing fails during the copy.
  void begin(const CheckpointScope& scope, const RunPosition& position, const std::string& identity,
             const Recipe& recipe, std::int64_t to_come);

  /// Returns true from begin() to end().
  bool is_under_way() const { return file_.has_value(); }
  /// Returns true if end() would not wait.
  bool is_done() const { return file_->is_done(); }
  /// Waits until the checkpoint is on the disk under its name. Its hash covers all checksums and
  /// thereby the contents. Throws RuntimeFailure if the system refuses; the previous checkpoint is
  /// then unchanged.
  CheckpointRecord end();

 private:
  /// Returns the buffer for a file of `bytes`; enlarges it if that is allowed.
  void reserve(std::uint64_t bytes, std::int64_t to_come);

  std::filesystem::path path_;
  PageMemory memory_;
  CheckpointRecord record_;
  // Last member: the threads use the others.
  std::jthread touching_;
  std::optional<BackgroundFile> file_;
};

}  // namespace fp8lab
