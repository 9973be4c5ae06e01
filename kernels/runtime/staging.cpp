#include "kernels/runtime/staging.hpp"

#include <algorithm>
#include <cstring>

namespace fp8lab::cuda {

Staging::Staging() {
  check(cudaMallocHost(reinterpret_cast<void**>(&memory_), kSlots * kSlotBytes + kReturnBytes),
        "cudaMallocHost");
  for (cudaEvent_t& event : emptied_) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  }
}

Staging::~Staging() {
  for (const cudaEvent_t event : emptied_) cudaEventDestroy(event);
  cudaFreeHost(memory_);
}

void Collection::add(void* destination, const std::byte* source, std::size_t stride,
                     std::size_t width, std::size_t rows) {
  const std::size_t bytes = width * rows;
  const bool large = bytes > Staging::kReturnBytes;
  if (!large && used_ + bytes > Staging::kReturnBytes) finish();
  void* const to = large ? destination : staging_.return_memory() + used_;
  if (stride == width || rows == 1) {
    check(cudaMemcpyAsync(to, source, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  } else {
    check(
        cudaMemcpy2DAsync(to, width, source, stride, width, rows, cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpy2DAsync");
  }
  if (large) return;
  parts_.push_back({destination, used_, bytes});
  used_ += bytes;
}

void Collection::finish() {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  for (const Part& part : parts_) {
    std::memcpy(part.destination, staging_.return_memory() + part.offset, part.bytes);
  }
  parts_.clear();
  used_ = 0;
}

std::byte* Staging::next_slot() {
  slot_ = (slot_ + 1) % kSlots;
  check(cudaEventSynchronize(emptied_[slot_]), "cudaEventSynchronize");
  return memory_ + slot_ * kSlotBytes;
}

void Staging::upload(std::byte* destination, std::size_t stride, const std::byte* source,
                     std::size_t width, std::size_t rows, cudaStream_t stream) {
  // A matrix without gaps is one row; of wider rows, a slot takes a part.
  if (stride == width || rows == 1) {
    width *= rows;
    rows = 1;
    stride = width;
  }
  const std::size_t part = std::min(width, kSlotBytes);
  const std::size_t rows_of_slot = std::max<std::size_t>(kSlotBytes / width, 1);
  for (std::size_t row = 0; row < rows; row += rows_of_slot) {
    const std::size_t count = std::min(rows_of_slot, rows - row);
    for (std::size_t column = 0; column < width; column += part) {
      const std::size_t bytes = std::min(part, width - column);
      std::byte* const slot = next_slot();
      // More than one row has the whole width, and lies contiguous in the source.
      std::memcpy(slot, source + row * width + column, count * bytes);
      std::byte* const place = destination + row * stride + column;
      if (count == 1) {  // whatever the stride: that of a copy of rows has a bound
        check(cudaMemcpyAsync(place, slot, bytes, cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
      } else {
        check(cudaMemcpy2DAsync(place, stride, slot, bytes, bytes, count, cudaMemcpyHostToDevice,
                                stream),
              "cudaMemcpy2DAsync");
      }
      check(cudaEventRecord(emptied_[slot_], stream), "cudaEventRecord");
    }
  }
}

}  // namespace fp8lab::cuda
