#include "src/io/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "emulation/api/error.hpp"

namespace fp8lab {
namespace {

/// False when the side file was removed, or replaced, between opening and locking it.
bool is_still_named(int descriptor, const std::filesystem::path& side_file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::stat(side_file.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

FileLock::FileLock(std::filesystem::path side_file, FileDescriptor file)
    : side_file_(std::move(side_file)), file_(std::move(file)) {}

FileLock::~FileLock() {
  // Removed while still locked: whoever opened it before finds it gone and makes a new one.
  if (file_.valid()) ::unlink(side_file_.c_str());
}

std::optional<FileLock> FileLock::try_acquire(const std::filesystem::path& path) {
  std::filesystem::path side_file = path;
  side_file += ".lock";
  for (;;) {
    FileDescriptor file(::open(side_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file.valid()) {
      throw RuntimeFailure(fmt::format("{}: cannot create the lock file: {}", side_file.string(),
                                       error_text(errno)));
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::nullopt;
      if (errno == EINTR) continue;
      throw RuntimeFailure(
          fmt::format("{}: cannot lock: {}", side_file.string(), error_text(errno)));
    }
    if (is_still_named(file.get(), side_file)) {
      return FileLock(std::move(side_file), std::move(file));
    }
  }
}

}  // namespace fp8lab
