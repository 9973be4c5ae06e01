#include "src/io/files/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>
#include <system_error>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "emulation/base/machine.hpp"
#include "src/io/files/file_descriptor.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/files_read.hpp"
#include "src/io/files/missing_file.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* action, int error) {
  throw RuntimeFailure(fmt::format("{}: cannot {}: {}", path.string(), action, error_text(error)));
}

/// Block size that every disk accepts for uncached writes: addresses and
/// lengths are multiples of it.
constexpr std::size_t kBlock = 4096;

/// Calls fsync on a file or directory by name. File systems that cannot sync a
/// directory return EINVAL.
void sync_path(const fs::path& path, int flags) {
  const FileDescriptor file(::open(path.c_str(), flags | O_RDONLY | O_CLOEXEC));
  if (!file.valid()) fail(path, "open for fsync", errno);
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail(path, "fsync", errno);
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

fs::path temporary_beside(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  const std::string name =
      fmt::format(".{}.tmp-{}-{}", path.filename().string(), ::getpid(), counter++);
  return path.parent_path() / name;
}

std::optional<fs::path> target_of_temporary(const fs::path& temporary) {
  const std::string name = temporary.filename().string();
  constexpr std::string_view kMark = ".tmp-";
  const std::size_t mark = name.rfind(kMark);
  if (!name.starts_with('.') || mark == std::string::npos || mark < 2) return std::nullopt;
  const std::string_view numbers = std::string_view(name).substr(mark + kMark.size());
  const std::size_t dash = numbers.find('-');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (dash == std::string_view::npos || !is_number(numbers.substr(0, dash)) ||
      !is_number(numbers.substr(dash + 1))) {
    return std::nullopt;
  }
  return temporary.parent_path() / name.substr(1, mark - 1);
}

std::vector<fs::path> temporaries(const fs::path& path) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory_of(path), ignored)) {
    const std::optional<fs::path> target = target_of_temporary(entry.path());
    if (target && target->filename() == path.filename()) found.push_back(entry.path());
  }
  return found;
}

void remove_temporaries(const fs::path& path) {
  std::error_code ignored;
  for (const fs::path& file : temporaries(path)) fs::remove(file, ignored);
}

TemporaryFile::~TemporaryFile() {
  if (!kept_) ::unlink(path_.c_str());
}

void replace_file(TemporaryFile& temporary, const fs::path& path) {
  sync_path(temporary.path(), 0);
  if (::rename(temporary.path().c_str(), path.c_str()) != 0) {
    fail(path, "rename a new file to", errno);
  }
  temporary.keep();
  sync_path(directory_of(path), O_DIRECTORY);
}

AtomicFile::AtomicFile(fs::path path, Caching caching)
    : path_(std::move(path)), temporary_(temporary_beside(path_)), caching_(caching) {
  if (is_folder(path_)) {
    throw InputError(
        {.where = path_.string(), .reason = "is a directory, a file is to be written"});
  }
  file_ = FileDescriptor(
      ::open(temporary_.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_.valid()) fail(path_, "create a file beside", errno);
  // File systems without uncached access refuse O_DIRECT.
  if (caching_ == Caching::none && ::fcntl(file_.get(), F_SETFL, O_DIRECT) != 0) {
    caching_ = Caching::system;
  }
}

void AtomicFile::begin_caching() {
  caching_ = Caching::system;
  if (::fcntl(file_.get(), F_SETFL, 0) != 0) fail(path_, "write", errno);
}

void AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(bytes.data()) % kBlock == 0;
    if (caching_ == Caching::none && (!is_aligned || bytes.size() < kBlock)) begin_caching();
    const std::size_t size =
        caching_ == Caching::none ? bytes.size() / kBlock * kBlock : bytes.size();
    const ssize_t count = ::write(file_.get(), bytes.data(), size);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno != EINVAL || caching_ == Caching::system) fail(path_, "write", errno);
      begin_caching();  // larger blocks on this disk, or an unaligned file offset
      continue;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (const int error = file_.close(); error != 0) fail(path_, "close", error);
  replace_file(temporary_, path_);
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void make_directories(const fs::path& directory) {
  if (directory.empty()) return;
  std::error_code error;
  fs::create_directories(directory, error);
  if (is_folder(directory)) return;
  if (is_present(directory) || error == std::errc::not_a_directory) {
    throw InputError({.where = directory.string(), .reason = "exists and is not a directory"});
  }
  fail(directory, "create the directory", error.value());
}

std::string read_file(const fs::path& path) {
  // O_NONBLOCK: opening a pipe would otherwise wait for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    throw InputError({.where = path.string(), .reason = why_not_opened(path, errno)});
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "stat", errno);
  if (S_ISDIR(status.st_mode)) {
    throw InputError({.where = path.string(), .reason = "is a directory, a file is expected"});
  }
  if (!S_ISREG(status.st_mode)) {
    throw InputError(
        {.where = path.string(), .reason = "is no regular file", .accepted = "one on a disk"});
  }
  note_file_read(path, status.st_dev, status.st_ino);
  require_memory(static_cast<double>(status.st_size), path.string() + ": to be read it");
  std::string bytes;
  std::size_t size = 0;
  // One byte more than the size, so that the end of an unchanged file is detected without growing.
  std::size_t room = static_cast<std::size_t>(status.st_size) + 1;
  try {
    for (;;) {
      if (size == bytes.size()) {
        bytes.resize(size + room);
        room = bytes.size();
      }
      const ssize_t count = ::read(file.get(), bytes.data() + size, bytes.size() - size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail(path, "read", errno);
      if (count == 0) break;
      size += static_cast<std::size_t>(count);
    }
  } catch (const std::bad_alloc&) {
    throw RuntimeFailure(fmt::format("{}: out of memory while reading its {}", path.string(),
                                     memory_text(static_cast<double>(status.st_size))));
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace fp8lab
