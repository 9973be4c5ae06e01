#include "src/io/files/mapped_file.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

std::uintptr_t page_size() {
  static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

/// A mapping as seen by the SIGBUS handler, which cannot take a lock: entries
/// are reused, never freed.
struct Entry {
  std::atomic<std::uintptr_t> begin = 0;  ///< 0: unused entry
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
  ::signal(signal, SIG_DFL);  // returning repeats the fault with the default action
}

}  // namespace

void explain_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = end_with_name;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const FileDescriptor file = open_regular_file(path);
  stamp_ = stamp_of(file, path.string());
  const auto size = static_cast<std::size_t>(stamp_.size);
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

FileStamp MappedFile::stamp_now() const {
  const std::optional<FileStamp> now = stamp_of(path_);
  return now && now->device == stamp_.device && now->file == stamp_.file ? *now : stamp_;
}

void release_pages(std::span<const std::byte> bytes) {
  // Only pages that lie entirely within `bytes`.
  const std::size_t page = page_size();
  const std::size_t begin = reinterpret_cast<std::uintptr_t>(bytes.data()) % page;
  const std::size_t first = (page - begin) % page;
  if (bytes.size() < first + page) return;
  ::madvise(const_cast<std::byte*>(bytes.data()) + first, (bytes.size() - first) / page * page,
            MADV_DONTNEED);
}

}  // namespace fp8lab
