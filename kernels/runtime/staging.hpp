// The ways of data between host and device: to it without waiting, back with one wait for many.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {

/// A ring of slots in page-locked memory, which the copy engine reads by itself. Data are copied
/// into a slot, and from there by the stream; the host waits only for a slot that the stream has
/// not emptied since the last time round.
class Staging {
 public:
  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Enqueues a copy of `rows` rows of `width` bytes, contiguous at `source`, to rows of
  /// `stride` bytes at `destination`. `source` may be reused at once.
  void upload(std::byte* destination, std::size_t stride, const std::byte* source,
              std::size_t width, std::size_t rows, cudaStream_t stream);

  static constexpr std::size_t kReturnBytes = std::size_t{1} << 20;
  /// Page-locked memory for what comes back.
  std::byte* return_memory() const { return memory_ + kSlots * kSlotBytes; }

 private:
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 18;
  static constexpr std::size_t kSlots = 64;

  /// The next slot, free to be written.
  std::byte* next_slot();

  std::byte* memory_ = nullptr;
  std::array<cudaEvent_t, kSlots> emptied_{};
  std::size_t slot_ = 0;
};

/// Tensors on their way to the host. Small ones go to page-locked memory, one behind the other, and
/// from there, after one wait, to their places; large ones straight to theirs.
class Collection {
 public:
  Collection(const Staging& staging, cudaStream_t stream) : staging_(staging), stream_(stream) {}

  /// Enqueues a copy of `rows` rows of `width` bytes, `stride` apart, to `destination`, contiguous.
  void add(void* destination, const std::byte* source, std::size_t stride, std::size_t width,
           std::size_t rows);
  /// Waits until everything is in its place.
  void finish();

 private:
  struct Part {
    void* destination;
    std::size_t offset, bytes;
  };

  const Staging& staging_;
  cudaStream_t stream_;
  std::vector<Part> parts_;
  std::size_t used_ = 0;
};

}  // namespace fp8lab::cuda
