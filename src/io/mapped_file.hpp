// A file seen as memory, read only as far as it is looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

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

  /// Which contents a file had, as far as the system notes it: file, size and times of change.
  struct Stamp {
    std::uint64_t device = 0, file = 0;
    std::int64_t size = 0, modified = 0, changed = 0;  ///< times in nanoseconds
    bool operator==(const Stamp&) const = default;
  };
  /// Before anything of it was read.
  const Stamp& stamp() const { return stamp_; }
  /// That of the mapped file now; stamp() where its name stands for another file or none.
  Stamp stamp_now() const;

 private:
  std::filesystem::path path_;
  Stamp stamp_;
  std::span<const std::byte> bytes_;
};

/// From now on a process that can read a mapped file no longer (it was cut off, or its disk fails)
/// ends with a line that names the file, and status 1.
void explain_lost_pages();

/// Asks the system to read these bytes of a mapped file now, in one go.
void fetch_pages(std::span<const std::byte> bytes);

/// Takes the whole pages among these bytes of a mapped file out of the resident memory of the
/// process. They stay readable.
void release_pages(std::span<const std::byte> bytes);

}  // namespace fp8lab
