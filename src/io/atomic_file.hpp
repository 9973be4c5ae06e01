// Files that are either the old one or the new one, never half of either.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/io/file_descriptor.hpp"

namespace fp8lab {

/// Replaces `path` by a file of `bytes`: temporary file in the same directory, fsync, rename, fsync
/// of the directory. The directory must exist. Throws RuntimeFailure when the system refuses and
/// Error when `path` names a directory; either way `path` is as before and nothing is left behind.
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

/// Whether what is written goes through the system's cache.
enum class Caching : std::uint8_t { system, none };

/// write_file_atomically in pieces: `path` changes with commit(), and not without it.
class AtomicFile {
 public:
  /// Without caching, pages of the cache are neither filled nor written back, which costs a large
  /// file several times what the disk needs. That holds for pieces that begin at a page and are
  /// whole pages, up to the first one that is not, and where the file system does it.
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

/// A name beside `path` that no other process and no other call uses. The file is not created.
std::filesystem::path temporary_beside(const std::filesystem::path& path);

/// The files that processes, running or killed, have made as temporary_beside(path).
std::vector<std::filesystem::path> temporaries(const std::filesystem::path& path);
/// The `path` of a name that temporary_beside(path) may have given; nothing for another name.
std::optional<std::filesystem::path> target_of_temporary(const std::filesystem::path& temporary);
/// Removes those of temporaries(path). The caller must hold a lock that keeps others from writing
/// `path`.
void remove_temporaries(const std::filesystem::path& path);

/// Brings the written file `temporary` to the disk and renames it over `path`, in the same
/// directory. Throws RuntimeFailure when that fails; then the destructor removes `temporary`.
void replace_file(TemporaryFile& temporary, const std::filesystem::path& path);

/// Makes `directory` and its parents; one that exists is fine. Throws RuntimeFailure when the
/// system refuses, Error when something else has the name.
void make_directories(const std::filesystem::path& directory);

/// All bytes of a regular file. Throws Error when it is missing, anything else (a folder, a pipe, a
/// device), not readable to the user, or larger than the memory of the machine; RuntimeFailure with
/// its name when reading it fails, or when the memory for it is not there.
std::string read_file(const std::filesystem::path& path);

}  // namespace fp8lab
