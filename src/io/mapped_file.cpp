#include "src/io/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "emulation/base/error.hpp"
#include "src/io/file_descriptor.hpp"

namespace fp8lab {
namespace {

std::uintptr_t page_size() {
  static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
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
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return;
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) {
    throw RuntimeFailure(fmt::format("{}: cannot map: {}", path.string(), error_text(errno)));
  }
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
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
