#include "src/io/files/page_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "emulation/base/error.hpp"
#include "src/io/files/file_descriptor.hpp"

namespace fp8lab {

PageMemory::PageMemory(std::size_t bytes) {
  if (bytes == 0) return;
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw RuntimeFailure(fmt::format("cannot allocate {} bytes: {}", bytes, error_text(errno)));
  }
  ::madvise(data, bytes, MADV_HUGEPAGE);  // a hint; may fail
  bytes_ = {static_cast<std::byte*>(data), bytes};
}

PageMemory::PageMemory(PageMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

PageMemory::~PageMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace fp8lab
