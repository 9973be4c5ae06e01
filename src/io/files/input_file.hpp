// A file that is read in parts and must not change meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {

/// Identifies the contents of a file as far as the system records it: inode,
/// size and times of change.
struct FileStamp {
  std::uint64_t device = 0, file = 0;
  std::int64_t size = 0, modified = 0, changed = 0;  ///< times in nanoseconds
  bool operator==(const FileStamp&) const = default;
};

/// Throws RuntimeFailure that names `path` if the system does not provide it.
FileStamp stamp_of(const FileDescriptor& file, const std::string& path);
/// Returns the stamp of the file that `path` names now; nothing if the system does not provide it.
std::optional<FileStamp> stamp_of(const std::filesystem::path& path);

/// Opens a regular file for reading. Throws Error if it is missing, of another kind, or
/// not readable to the user.
FileDescriptor open_regular_file(const std::filesystem::path& path);

/// An open regular file. Replacing it by another file of the same name is harmless: reads continue
/// to see the old contents.
class InputFile {
 public:
  /// Throws Error under the conditions of open_regular_file.
  explicit InputFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return static_cast<std::uint64_t>(stamp_.size); }
  /// Fills `destination` with the bytes from `offset` on. Precondition: they lie within
  /// size(). Throws RuntimeFailure that names the file if it cannot be read, or if it was
  /// written or truncated since it was opened, since parts of the data would then come
  /// from different contents.
  void read(std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  std::string path_;
  FileDescriptor file_;
  FileStamp stamp_;
};

}  // namespace fp8lab
