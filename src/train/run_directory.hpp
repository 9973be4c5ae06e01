// The two files of a run in their directory: what may begin there, and what goes on from where.
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

  /// Throws Error, with the way on, unless a new run can begin here or, with `resume`, there is one
  /// to continue.
  void check(bool resume) const;

  /// Makes the directory, takes the lock of its writer, checks it once more and removes what killed
  /// writers left.
  FileLock lock(bool resume) const;

  /// The status of the run here. Throws Error naming what differs unless it is a run of `identity`;
  /// with `any_weights` initial weights do not count, which `identity` is without then.
  RunStatus status_of(const Identity& identity, const RunConfig& config,
                      bool any_weights = false) const;

  /// Where that run goes on: the checkpoint, or nothing when it was killed before the first one. A
  /// kill between the two files leaves a checkpoint that `status` does not record yet. Throws Error
  /// when the checkpoint is missing though `status` records one, older than that, damaged, or of
  /// another run.
  std::optional<CheckpointSummary> find_checkpoint(const RunStatus& status,
                                                   const Identity& identity,
                                                   const RunConfig& config) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace fp8lab
