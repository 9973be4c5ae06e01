// Checkpoints that are written while the run goes on.
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

/// Bytes of host memory that a checkpoint of `bytes` is copied through: all of it, but at most half
/// of what this machine has left once the run has taken `to_come` more. What does not fit at once
/// is copied as the disk takes it, and only the rest is written beside the steps.
std::size_t checkpoint_memory(std::uint64_t bytes, std::int64_t to_come);

/// Writes the checkpoints of a run, one after another, each over the one before.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::filesystem::path path);

  /// Takes the memory for checkpoints of `scope` and makes its pages, which takes seconds for a
  /// large model, on threads of its own; begin() waits for them. `to_come` as there.
  void prepare(const CheckpointScope& scope, std::int64_t to_come);

  /// Copies everything in `scope` and `position` but the seconds, which end() returns, and writes
  /// it from then on, atomically, beside whatever the caller does: the file is on the disk when
  /// end() returns. None is under way. `identity` is that of the run (identity.hpp); `recipe` is
  /// the recipe under which the quantizers work; the run will take `to_come` more bytes of host
  /// memory. Every tensor and the header have an XXH3-64 in the file. Throws what makes writing
  /// fail while it copies.
  void begin(const CheckpointScope& scope, const RunPosition& position, const std::string& identity,
             const Recipe& recipe, std::int64_t to_come);

  /// True from begin() to end().
  bool is_under_way() const { return file_.has_value(); }
  /// True when end() would not wait.
  bool is_done() const { return file_->is_done(); }
  /// Waits until the checkpoint under way is on the disk under its name. Its hash is that over all
  /// checksums, the content's identity. Throws RuntimeFailure when the system refuses; then the
  /// checkpoint before is as it was.
  CheckpointRecord end();

 private:
  /// Memory for a file of `bytes`: what there is, unless there may be more.
  void reserve(std::uint64_t bytes, std::int64_t to_come);

  std::filesystem::path path_;
  PageMemory memory_;
  CheckpointRecord record_;
  // Last: they use the others.
  std::jthread touching_;
  std::optional<BackgroundFile> file_;
};

}  // namespace fp8lab
