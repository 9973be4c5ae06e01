// The two files of a run in their directory: whether a run can begin or resume there.
#pragma once

#include <filesystem>
#include <optional>

#include "src/config/config.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/train/checkpoint/checkpoint.hpp"

namespace fp8lab {

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path directory) : directory_(std::move(directory)) {}

  std::filesystem::path run_file() const { return directory_ / "run.h5"; }
  std::filesystem::path checkpoint_file() const { return directory_ / "checkpoint.safetensors"; }

  /// Throws Error that says how to proceed, unless a new run can begin here or, with `resume`, a
  /// run can be resumed.
  void check(bool resume) const;

  /// Makes the directory, locks it for one writer, repeats the check, and removes remains of killed
  /// writers.
  FileLock lock(bool resume) const;

  /// Returns the status of the run here. Throws Error naming the parts that differ from `identity`;
  /// with `any_weights`, `identity` has no initial weights and they are not compared.
  RunStatus status_of(const Identity& identity, const RunConfig& config,
                      bool any_weights = false) const;

  /// Returns the checkpoint from which the run resumes; nothing if it was killed before its first
  /// one. The checkpoint may be newer than `status` records, after a kill between the two writes.
  /// Throws Error if the checkpoint is missing though one is recorded, older than recorded,
  /// damaged, or of another run.
  std::optional<CheckpointSummary> find_checkpoint(const RunStatus& status,
                                                   const Identity& identity,
                                                   const RunConfig& config) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace fp8lab
