#include "src/io/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/io/file_descriptor.hpp"

namespace fp8lab {
namespace {

std::uintptr_t page_size() {
  static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

MappedFile::Stamp stamp_of(const struct stat& status) {
  const auto nanoseconds = [](const struct timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {status.st_dev, status.st_ino, status.st_size, nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

/// A mapping for the handler of SIGBUS, which can take no lock: entries are used again, never
/// freed.
struct Entry {
  std::atomic<std::uintptr_t> begin = 0;  ///< 0: of no mapping
  std::atomic<std::size_t> size = 0;
  std::string name;
  Entry* next = nullptr;
};

std::atomic<Entry*> first_entry = nullptr;
std::mutex entries_change;

void add_entry(std::span<const std::byte> bytes, const std::string& name) {
  const std::lock_guard<std::mutex> lock(entries_change);
  Entry* entry = first_entry;
  while (entry != nullptr && entry->begin != 0) entry = entry->next;
  if (entry == nullptr) {
    entry = new Entry;
    entry->next = first_entry;
    first_entry = entry;
  }
  entry->name = name;
  entry->size = bytes.size();
  entry->begin = reinterpret_cast<std::uintptr_t>(bytes.data());
}

void remove_entry(std::span<const std::byte> bytes) {
  const std::lock_guard<std::mutex> lock(entries_change);
  for (Entry* entry = first_entry; entry != nullptr; entry = entry->next) {
    if (entry->begin == reinterpret_cast<std::uintptr_t>(bytes.data())) entry->begin = 0;
  }
}

void say(const char* text, std::size_t size) {
  if (::write(STDERR_FILENO, text, size) < 0) ::_exit(1);
}

void end_with_name(int signal, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Entry* entry = first_entry; entry != nullptr; entry = entry->next) {
    const std::uintptr_t begin = entry->begin;
    if (begin == 0 || address < begin || address - begin >= entry->size) continue;
    constexpr char kEnd[] = ": was cut off or cannot be read any more, while it was in use\n";
    say("fp8lab: ", 8);
    say(entry->name.data(), entry->name.size());
    say(kEnd, sizeof kEnd - 1);
    ::_exit(1);
  }
  ::signal(signal, SIG_DFL);  // the fault comes again
}

}  // namespace

void explain_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = end_with_name;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    throw Error(fmt::format("{}: cannot open: {}", path.string(), error_text(errno)));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw RuntimeFailure(fmt::format("{}: cannot stat: {}", path.string(), error_text(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(fmt::format("{}: is no regular file", path.string()));
  }
  stamp_ = stamp_of(status);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) {
    throw RuntimeFailure(fmt::format("{}: cannot map: {}", path.string(), error_text(errno)));
  }
  bytes_ = {static_cast<const std::byte*>(data), size};
  add_entry(bytes_, path.string());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      stamp_(other.stamp_),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(stamp_, other.stamp_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  remove_entry(bytes_);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::Stamp MappedFile::stamp_now() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return stamp_;
  const Stamp now = stamp_of(status);
  return now.device == stamp_.device && now.file == stamp_.file ? now : stamp_;
}

void fetch_pages(std::span<const std::byte> bytes) {
  // From the page on that the first byte is in: a mapping starts with a page.
  const std::size_t before = reinterpret_cast<std::uintptr_t>(bytes.data()) % page_size();
  // Advice only: where the kernel does not know it, the pages come when they are read.
#if defined(MADV_POPULATE_READ)
  constexpr int kAdvice = MADV_POPULATE_READ;
#else
  constexpr int kAdvice = MADV_WILLNEED;
#endif
  ::madvise(const_cast<std::byte*>(bytes.data()) - before, before + bytes.size(), kAdvice);
}

void release_pages(std::span<const std::byte> bytes) {
  // Pages that lie within `bytes` as a whole.
  const std::size_t page = page_size();
  const std::size_t begin = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  const std::size_t first = (page - begin) % page;
  if (bytes.size() < first + page) return;
  ::madvise(const_cast<std::byte*>(bytes.data()) + first, (bytes.size() - first) / page * page,
            MADV_DONTNEED);
}

}  // namespace fp8lab
