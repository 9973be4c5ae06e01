// One writer per file, one owner per folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "src/io/file_descriptor.hpp"

namespace fp8lab {

/// Advisory lock on the side file `<path>.lock`. It is a kernel lock on an open file, so it ends
/// with the process, however the process ends; a side file that is left over locks nothing. A child
/// that inherits descriptor() across its exec holds the lock too, until both are gone.
class FileLock {
 public:
  enum class Mode : std::uint8_t {
    exclusive,  ///< one holder, whose name owner() gives
    shared,     ///< any number of them, and no exclusive one; nobody's name is kept
  };

  /// Empty when another process, or another FileLock of this one, holds the lock. Does not wait.
  /// Throws RuntimeFailure when the side file cannot be made or the file system has no locks.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path,
                                             Mode mode = Mode::exclusive);

  /// Who took the exclusive lock last: "process 7 on HOST since 2026-01-31 10:00:00 UTC: COMMAND";
  /// empty when nobody told. Says who holds it only where try_acquire has just failed.
  static std::string owner(const std::filesystem::path& path);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  /// Removes the side file, unless others share the lock, and releases it.
  ~FileLock();

  /// Closed by exec, unless the child clears that flag.
  int descriptor() const { return file_.get(); }

 private:
  FileLock(std::filesystem::path side_file, FileDescriptor file, Mode mode);
  std::filesystem::path side_file_;
  FileDescriptor file_;
  Mode mode_;
};

}  // namespace fp8lab
