// A file seen as memory, read only as far as it is looked at.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "src/io/input_file.hpp"

namespace fp8lab {

/// A file mapped for reading as long as the object lives. Replacing it by another file of the same
/// name does no harm; writing into it changes what is mapped (stamp_now), and shortening it ends
/// the process that reads beyond the new end (explain_lost_pages).
class MappedFile {
 public:
  /// Throws Error when the file is missing, a directory or not readable to the user,
  /// RuntimeFailure when the system refuses.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

  /// Before anything of it was read.
  const FileStamp& stamp() const { return stamp_; }
  /// That of the mapped file now; stamp() where its name stands for another file or none.
  FileStamp stamp_now() const;

 private:
  std::filesystem::path path_;
  FileStamp stamp_;
  std::span<const std::byte> bytes_;
};

/// From now on a process that can read a mapped file no longer (it was cut off, or its disk fails)
/// ends with a line that names the file, and status 1.
void explain_lost_pages();

/// Takes the whole pages among these bytes of a mapped file out of the resident memory of the
/// process. They stay readable.
void release_pages(std::span<const std::byte> bytes);

}  // namespace fp8lab
