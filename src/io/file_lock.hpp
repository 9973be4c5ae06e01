// One writer per file.
#pragma once

#include <filesystem>
#include <optional>

#include "src/io/file_descriptor.hpp"

namespace fp8lab {

/// Exclusive advisory lock on the side file `<path>.lock`. It is a kernel lock on an open file, so
/// it ends with the process, however the process ends; a side file that is left over locks nothing.
class FileLock {
 public:
  /// Empty when another process, or another FileLock of this one, holds the lock. Does not wait.
  /// Throws RuntimeFailure when the side file cannot be made or the file system has no locks.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  /// Removes the side file and releases the lock.
  ~FileLock();

 private:
  FileLock(std::filesystem::path side_file, FileDescriptor file);
  std::filesystem::path side_file_;
  FileDescriptor file_;
};

}  // namespace fp8lab
