// Page-aligned memory.
#pragma once

#include <cstddef>
#include <span>

namespace fp8lab {

/// Zeroed, page-aligned memory, in large pages if the system has them. Not copyable.
class PageMemory {
 public:
  PageMemory() = default;
  /// Throws RuntimeFailure if the system refuses.
  explicit PageMemory(std::size_t bytes);
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  ~PageMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace fp8lab
