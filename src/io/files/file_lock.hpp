// One writer per file, one owner per folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {

/// Advisory lock on the side file `<path>.lock`. It is a kernel lock on an open file, so it ends
/// with the process, however the process ends; a leftover side file locks nothing. A child that
/// inherits descriptor() across its exec shares the lock until both processes have ended.
class FileLock {
 public:
  enum class Mode : std::uint8_t {
    exclusive,  ///< one holder, whose name owner() returns
    shared,     ///< any number of holders, but no exclusive one; records no owner
  };

  /// Returns the lock, or nothing if another process, or another FileLock of this process,
  /// holds it. Does not wait. Throws RuntimeFailure if the side file cannot be created or the
  /// file system has no locks.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path,
                                             Mode mode = Mode::exclusive);

  /// As try_acquire, exclusive, but also locks the folder of `path`, so that removing the side file
  /// lets nobody else in. For the one file of its folder that is locked so. File systems that lock
  /// no folders have the side file alone.
  static std::optional<FileLock> try_acquire_with_folder(const std::filesystem::path& path);

  /// Returns who took the exclusive lock last: "process 7 on HOST since 2026-01-31 10:00:00
  /// UTC: COMMAND"; empty if nobody recorded it. This is the present holder only if
  /// try_acquire has just failed.
  static std::string owner(const std::filesystem::path& path);

  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  /// Releases the lock and removes the side file, unless others share the lock.
  ~FileLock();

  /// The descriptor is closed by exec, unless the child clears that flag.
  int descriptor() const { return file_.get(); }

 private:
  FileLock(std::filesystem::path side_file, FileDescriptor file, Mode mode);
  std::filesystem::path side_file_;
  FileDescriptor file_;
  FileDescriptor folder_;  ///< of try_acquire_with_folder
  Mode mode_;
};

}  // namespace fp8lab
