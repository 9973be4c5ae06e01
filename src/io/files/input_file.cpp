#include "src/io/files/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/files_read.hpp"
#include "src/io/files/missing_file.hpp"

namespace fp8lab {

namespace {

FileStamp stamp_from(const struct stat& status) {
  const auto nanoseconds = [](const struct timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {status.st_dev, status.st_ino, status.st_size, nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

struct stat status_of(const FileDescriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) == 0) return status;
  throw RuntimeFailure(fmt::format("{}: cannot stat: {}", path, error_text(errno)));
}

}  // namespace

FileStamp stamp_of(const FileDescriptor& file, const std::string& path) {
  return stamp_from(status_of(file, path));
}

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return stamp_from(status);
}

FileDescriptor open_regular_file(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe would otherwise wait for a writer.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    throw InputError({.where = path.string(), .reason = why_not_opened(path, errno)});
  }
  const struct stat status = status_of(file, path.string());
  if (!S_ISREG(status.st_mode)) {
    throw InputError({.where = path.string(), .reason = "is no regular file"});
  }
  note_file_read(path, status.st_dev, status.st_ino);
  return file;
}

InputFile::InputFile(const std::filesystem::path& path)
    : path_(path.string()), file_(open_regular_file(path)), stamp_(stamp_of(file_, path_)) {}

void InputFile::read(std::uint64_t offset, std::span<std::byte> destination) const {
  FP8LAB_ASSERT(offset <= size() && destination.size() <= size() - offset);
  while (!destination.empty()) {
    const ssize_t count =
        ::pread(file_.get(), destination.data(), destination.size(), static_cast<::off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw RuntimeFailure(fmt::format("{}: cannot read: {}", path_, error_text(errno)));
    }
    if (count == 0) {
      throw RuntimeFailure(fmt::format("{}: was cut off while it was in use", path_));
    }
    destination = destination.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  // Does not compare the time of change (ctime), which renaming and changing permissions also set.
  const FileStamp now = stamp_of(file_, path_);
  if (now.size == stamp_.size && now.modified == stamp_.modified) return;
  throw RuntimeFailure(fmt::format("{}: was {} while it was in use", path_,
                                   now.size < stamp_.size ? "cut off" : "written to"));
}

}  // namespace fp8lab
