// The way of host data to the device without waiting for it.
#pragma once

#include <array>
#include <cstddef>

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

 private:
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 18;
  static constexpr std::size_t kSlots = 64;

  /// The next slot, free to be written.
  std::byte* next_slot();

  std::byte* memory_ = nullptr;
  std::array<cudaEvent_t, kSlots> emptied_{};
  std::size_t slot_ = 0;
};

}  // namespace fp8lab::cuda
