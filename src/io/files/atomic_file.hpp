// Atomic replacement of files: readers see the old file or the new one, never a partial one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {

/// Replaces `path` by a file of `bytes`: writes a temporary file in the same directory, syncs it,
/// renames it, and syncs the directory. Precondition: the directory exists. Throws RuntimeFailure
/// if the system refuses and Error if `path` names a directory; in both cases `path` is unchanged
/// and no temporary file remains.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);

/// Removes a file when it goes out of scope, unless keep() was called. The file need not exist.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();
  const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

/// Selects whether writes go through the system's page cache.
enum class Caching : std::uint8_t { system, none };

/// write_file_atomically in pieces: `path` changes only at commit().
class AtomicFile {
 public:
  /// Caching::none bypasses the page cache, whose filling and write-back cost a large file several
  /// times the disk's own time. It applies to pieces that begin at a page boundary and are whole
  /// pages, up to the first piece that is not, and only if the file system supports it.
  explicit AtomicFile(std::filesystem::path path, Caching caching = Caching::system);
  void write(std::string_view bytes);
  void commit();

 private:
  void begin_caching();

  std::filesystem::path path_;
  TemporaryFile temporary_;
  FileDescriptor file_;
  Caching caching_;
};

/// Returns a name in the directory of `path` that no other process or call uses.
/// Does not create the file.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

/// Returns the files that running or killed processes have created as temporary_beside(path).
std::vector<std::filesystem::path> temporaries(const std::filesystem::path& path);
/// Returns the `path` for which temporary_beside could have returned this name;
/// nothing for other names.
std::optional<std::filesystem::path> target_of_temporary(const std::filesystem::path& temporary);
/// Removes the files of temporaries(path). Precondition: the caller holds a lock that keeps other
/// processes from writing `path`.
void remove_temporaries(const std::filesystem::path& path);

/// Syncs the written file `temporary` to the disk and renames it over `path`, in the same
/// directory. Throws RuntimeFailure if that fails; the destructor then removes `temporary`.
void replace_file(TemporaryFile& temporary, const std::filesystem::path& path);

/// Creates `directory` and its parents if they do not exist. Throws RuntimeFailure if the system
/// refuses, Error if the name belongs to something other than a directory.
void make_directories(const std::filesystem::path& directory);

/// Returns all bytes of a regular file. Throws Error if the file is missing, of another kind (a
/// folder, a pipe, a device), not readable to the user, or larger than the memory of the machine;
/// RuntimeFailure with its name if reading or allocation fails.
std::string read_file(const std::filesystem::path& path);

}  // namespace fp8lab
