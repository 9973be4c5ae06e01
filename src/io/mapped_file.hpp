// A file seen as memory, read only as far as it is looked at.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace fp8lab {

/// A file mapped for reading as long as the object lives. It must not be shortened meanwhile: the
/// system ends a process that reads beyond the end of a mapped file. Replacing it by another file
/// of the same name does no harm.
class MappedFile {
 public:
  /// Throws Error when the file is missing, a directory or not readable to the user,
  /// RuntimeFailure when the system refuses.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Asks the system to read these bytes of a mapped file now, in one go.
void fetch_pages(std::span<const std::byte> bytes);

/// Takes the whole pages among these bytes of a mapped file out of the resident memory of the
/// process. They stay readable.
void release_pages(std::span<const std::byte> bytes);

}  // namespace fp8lab
