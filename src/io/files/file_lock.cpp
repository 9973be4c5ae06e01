#include "src/io/files/file_lock.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"

namespace fp8lab {
namespace {

constexpr std::size_t kLongestCommand = 400;

/// Returns false if the side file was removed, or replaced, between opening and locking it.
bool is_still_named(int descriptor, const std::filesystem::path& side_file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(side_file.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

bool is_regular(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

std::filesystem::path side_file_of(std::filesystem::path path) {
  path += ".lock";
  return path;
}

/// Returns an empty text if there is no such file.
std::string text_of(const std::filesystem::path& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return {};
  }
}

std::string describe_this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  std::string command = text_of("/proc/self/cmdline");
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace_if(
      command.begin(), command.end(),
      [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, ' ');
  if (command.size() > kLongestCommand) command = command.substr(0, kLongestCommand) + " ...";
  return fmt::format("process {} on {} since {:%Y-%m-%d %H:%M:%S} UTC: {}", ::getpid(), host.data(),
                     fmt::gmtime(std::time(nullptr)), command);
}

/// On a full disk the lock has no owner's name but is still valid, so errors are ignored.
void write_owner(int descriptor, const std::string& owner) {
  if (::ftruncate(descriptor, 0) != 0) return;
  if (::pwrite(descriptor, owner.data(), owner.size(), 0) < 0) return;
}

}  // namespace

FileLock::FileLock(std::filesystem::path side_file, FileDescriptor file, Mode mode)
    : side_file_(std::move(side_file)), file_(std::move(file)), mode_(mode) {}

FileLock::~FileLock() {
  if (!file_.valid()) return;
  folder_.close();  // first, so that who takes the side file finds it free
  if (mode_ == Mode::shared && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) return;
  // Unlinks while still locked: a process that opened the file earlier detects
  // this and creates a new one.
  if (is_still_named(file_.get(), side_file_)) ::unlink(side_file_.c_str());
}

std::optional<FileLock> FileLock::try_acquire(const std::filesystem::path& path, Mode mode) {
  std::filesystem::path side_file = side_file_of(path);
  const int kind = mode == Mode::exclusive ? LOCK_EX : LOCK_SH;
  for (;;) {
    // O_NOFOLLOW: the target of a link would be overwritten. A fifo or a device is refused as well.
    FileDescriptor file(
        ::open(side_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (file.valid() ? !is_regular(file.get()) : errno == ELOOP) {
      throw InputError(
          {.where = side_file.string(),
           .reason = "is no regular file, and would be written as the lock file; remove it"});
    }
    if (!file.valid()) {
      throw RuntimeFailure(fmt::format("{}: cannot create the lock file: {}", side_file.string(),
                                       error_text(errno)));
    }
    if (::flock(file.get(), kind | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::nullopt;
      if (errno == EINTR) continue;
      throw RuntimeFailure(
          fmt::format("{}: cannot lock: {}", side_file.string(), error_text(errno)));
    }
    if (is_still_named(file.get(), side_file)) {
      write_owner(file.get(), mode == Mode::exclusive ? describe_this_process() : "");
      return FileLock(std::move(side_file), std::move(file), mode);
    }
  }
}

std::optional<FileLock> FileLock::try_acquire_with_folder(const std::filesystem::path& path) {
  std::optional<FileLock> lock = try_acquire(path);
  if (!lock) return std::nullopt;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid()) return lock;
  int failed = 0;
  do {
    failed = ::flock(opened.get(), LOCK_EX | LOCK_NB);
  } while (failed != 0 && errno == EINTR);
  if (failed != 0 && errno == EWOULDBLOCK) return std::nullopt;
  lock->folder_ = std::move(opened);
  return lock;
}

std::string FileLock::owner(const std::filesystem::path& path) {
  return text_of(side_file_of(path));
}

}  // namespace fp8lab
