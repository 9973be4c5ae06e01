// A file that is read in parts, and that nobody may change meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "src/io/file_descriptor.hpp"

namespace fp8lab {

/// Which contents a file has, as far as the system notes it: file, size and times of change.
struct FileStamp {
  std::uint64_t device = 0, file = 0;
  std::int64_t size = 0, modified = 0, changed = 0;  ///< times in nanoseconds
  bool operator==(const FileStamp&) const = default;
};

/// Throws RuntimeFailure naming `path` when the system does not tell.
FileStamp stamp_of(const FileDescriptor& file, const std::string& path);
/// That of what has the name `path` now; nothing where the system does not tell.
std::optional<FileStamp> stamp_of(const std::filesystem::path& path);

/// A regular file, open for reading. Throws Error when it is missing, anything else or not readable
/// to the user.
FileDescriptor open_regular_file(const std::filesystem::path& path);

/// An open regular file. Replacing it by another file of the same name does no harm: the old one is
/// read to its end.
class InputFile {
 public:
  /// Throws Error as open_regular_file does.
  explicit InputFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return static_cast<std::uint64_t>(stamp_.size); }
  /// Fills `destination` with the bytes from `offset` on, which must lie within size(). Throws
  /// RuntimeFailure naming the file when it cannot be read, and when it has been written to or cut
  /// off since it was opened: some of what was read would be of other contents than the rest.
  void read(std::uint64_t offset, std::span<std::byte> destination) const;

 private:
  std::string path_;
  FileDescriptor file_;
  FileStamp stamp_;
};

}  // namespace fp8lab
