#include "kernels/runtime/staging.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace fp8lab::cuda {
namespace {

constexpr std::size_t kAlignment = 256;  // of parts in a chunk: the copy engine is faster with it

/// memcpy, with all threads if the copy is large: one thread copies about 10 GB/s, the link several
/// times that. The team always has all threads, because a team of another size than the last one
/// ends threads and starts new ones.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kSlice = std::size_t{1} << 18;
  constexpr std::int64_t kLeastSlices = 4;  // fewer take about as long as waking threads
  const auto slices = static_cast<std::int64_t>((bytes + kSlice - 1) / kSlice);
#pragma omp parallel for schedule(dynamic) if (slices >= kLeastSlices)
  for (std::int64_t i = 0; i < slices; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * kSlice;
    std::memcpy(to + at, from + at, std::min(kSlice, bytes - at));
  }
}

}  // namespace

Staging::Staging() {
  check(cudaMallocHost(reinterpret_cast<void**>(&memory_), kChunks * kChunkBytes),
        "cudaMallocHost");
  const auto create = [](cudaEvent_t& event) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  };
  std::for_each(emptied_.begin(), emptied_.end(), create);
  std::for_each(filled_.begin(), filled_.end(), create);
}

Staging::~Staging() {
  for (const cudaEvent_t event : emptied_) cudaEventDestroy(event);
  for (const cudaEvent_t event : filled_) cudaEventDestroy(event);
  cudaFreeHost(memory_);
}

std::byte* Staging::take_slots(std::size_t bytes) {
  const std::size_t count = (bytes + kSlotBytes - 1) / kSlotBytes;
  first_ = end_ + count > kSlots ? 0 : end_;
  end_ = first_ + count;
  for (std::size_t slot = first_; slot < end_; ++slot) {
    check(cudaEventSynchronize(emptied_[event_of_[slot]]), "cudaEventSynchronize");
  }
  return memory_ + first_ * kSlotBytes;
}

void Staging::give_slots(cudaStream_t stream) {
  const std::size_t last = end_ - 1;  // is reused after the others, so its event covers them all
  check(cudaEventRecord(emptied_[last], stream), "cudaEventRecord");
  for (std::size_t slot = first_; slot < end_; ++slot) event_of_[slot] = last;
}

void Staging::upload(std::byte* destination, std::size_t stride, const std::byte* source,
                     std::size_t width, std::size_t rows, cudaStream_t stream) {
  // A matrix without gaps counts as one row. If a row exceeds the slots, it is copied in parts.
  if (stride == width || rows == 1) {
    width *= rows;
    rows = 1;
    stride = width;
  }
  const std::size_t part = std::min(width, kChunkBytes);
  const std::size_t rows_at_once = std::max<std::size_t>(kChunkBytes / width, 1);
  for (std::size_t row = 0; row < rows; row += rows_at_once) {
    const std::size_t count = std::min(rows_at_once, rows - row);
    for (std::size_t column = 0; column < width; column += part) {
      const std::size_t bytes = std::min(part, width - column);
      std::byte* const slots = take_slots(count * bytes);
      // If there is more than one row, their full width is copied, which is
      // contiguous in the source.
      copy_bytes(slots, source + row * width + column, count * bytes);
      std::byte* const place = destination + row * stride + column;
      if (count == 1) {  // no 2D copy, whose stride is limited
        check(cudaMemcpyAsync(place, slots, bytes, cudaMemcpyHostToDevice, stream),
              "cudaMemcpyAsync");
      } else {
        check(cudaMemcpy2DAsync(place, stride, slots, bytes, bytes, count, cudaMemcpyHostToDevice,
                                stream),
              "cudaMemcpy2DAsync");
      }
      give_slots(stream);
    }
  }
}

Collection::~Collection() {
  if (oldest_ < open_ || used_ > 0) cudaStreamSynchronize(stream_);
}

void Collection::add(std::byte* destination, const std::byte* source, std::size_t stride,
                     std::size_t width, std::size_t rows) {
  if (stride == width || rows == 1) {
    width *= rows;
    rows = 1;
  }
  for (std::size_t row = 0, column = 0; row < rows;) {
    if (used_ >= Staging::kChunkBytes) open_next();
    const std::size_t room = Staging::kChunkBytes - used_;
    const std::byte* const from = source + row * stride + column;
    std::byte* const place = staging_.chunk(open_) + used_;
    const std::size_t whole = column == 0 ? std::min(rows - row, room / width) : 0;
    std::size_t bytes = whole * width;
    if (whole > 1) {
      check(cudaMemcpy2DAsync(place, width, from, stride, width, whole, cudaMemcpyDeviceToHost,
                              stream_),
            "cudaMemcpy2DAsync");
      row += whole;
    } else {  // no 2D copy, whose stride is limited
      bytes = std::min(width - column, room);
      check(cudaMemcpyAsync(place, from, bytes, cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync");
      column += bytes;
      if (column == width) {
        column = 0;
        ++row;
      }
    }
    parts_[open_ % Staging::kChunks].push_back({destination, place, bytes});
    destination += bytes;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void Collection::open_next() {
  check(cudaEventRecord(staging_.filled(open_), stream_), "cudaEventRecord");
  ++open_;
  used_ = 0;
  if (open_ - oldest_ == Staging::kChunks) empty_oldest();
}

void Collection::empty_oldest() {
  check(cudaEventSynchronize(staging_.filled(oldest_)), "cudaEventSynchronize");
  std::vector<Part>& parts = parts_[oldest_ % Staging::kChunks];
  for (const Part& part : parts) copy_bytes(part.destination, part.source, part.bytes);
  parts.clear();
  ++oldest_;
}

void Collection::finish() {
  if (used_ > 0) open_next();
  while (oldest_ < open_) empty_oldest();
}

}  // namespace fp8lab::cuda
