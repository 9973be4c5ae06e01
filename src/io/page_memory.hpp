// Memory of whole pages.
#pragma once

#include <cstddef>
#include <span>

namespace fp8lab {

/// Zeroed memory that begins at a page, in large pages where the system has them. Not copyable.
class PageMemory {
 public:
  PageMemory() = default;
  /// Throws RuntimeFailure when the system refuses.
  explicit PageMemory(std::size_t bytes);
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace fp8lab
