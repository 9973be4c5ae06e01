// A read-only memory mapping of a file; pages are read on first access.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "src/io/files/input_file.hpp"

namespace fp8lab {

/// Maps a file for reading for the lifetime of the object. Replacing it by another file of the same
/// name is harmless. Writing into the file changes the mapped bytes (stamp_now), and truncating it
/// ends a process that reads beyond the new end (explain_lost_pages).
class MappedFile {
 public:
  /// Throws Error if the file is missing, a directory or not readable to the user,
  /// RuntimeFailure if the system refuses.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

  /// The stamp before any byte of the file was read.
  const FileStamp& stamp() const { return stamp_; }
  /// Returns the stamp of the mapped file now; stamp() if its name now refers
  /// to another file or none.
  FileStamp stamp_now() const;

 private:
  std::filesystem::path path_;
  FileStamp stamp_;
  std::span<const std::byte> bytes_;
};

/// Installs a SIGBUS handler: a process that can no longer read a mapped file (truncated, or a
/// failing disk) prints a line that names the file and exits with status 1.
void explain_lost_pages();

/// Removes the whole pages among these bytes of a mapped file from the resident memory of the
/// process. They stay readable.
void release_pages(std::span<const std::byte> bytes);

}  // namespace fp8lab
