// The ways of data between host and device: to it without waiting, back with one wait for many.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {

/// Page-locked memory, which the copy engine reads and writes by itself, of one stream:
///
///   upload     host -> slots -> device    the host waits only for slots that the stream has not
///                                         emptied since the last time round
///   download   device -> chunks -> host   by Collection, which waits until all is there
///
/// The chunks are the memory of the slots: the stream reads slots before it fills chunks, and
/// nobody uploads before the chunks are empty again. The host's side of a large copy is that of
/// all OpenMP threads.
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

  static constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
  static constexpr std::size_t kChunks = 4;
  std::byte* chunk(std::size_t number) const { return memory_ + number % kChunks * kChunkBytes; }
  /// For the copies into that chunk.
  cudaEvent_t filled(std::size_t number) const { return filled_[number % kChunks]; }

 private:
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 18;
  static constexpr std::size_t kSlots = kChunks * kChunkBytes / kSlotBytes;

  /// Free slots one behind the other, at least `bytes` and at most a chunk: from first_ to end_.
  std::byte* take_slots(std::size_t bytes);
  /// They are free again after what is in the stream.
  void give_slots(cudaStream_t stream);

  std::byte* memory_ = nullptr;
  std::size_t first_ = 0, end_ = 0;
  std::array<cudaEvent_t, kSlots> emptied_{};
  std::array<std::size_t, kSlots> event_of_{};  ///< by slot: which event says that it is empty
  std::array<cudaEvent_t, kChunks> filled_{};
};

/// Tensors on their way to the host, one behind the other through the chunks: while the stream
/// fills some, the host copies from the oldest.
class Collection {
 public:
  Collection(const Staging& staging, cudaStream_t stream) : staging_(staging), stream_(stream) {}
  /// After an exception, waits until nothing writes into the chunks.
  ~Collection();
  Collection(const Collection&) = delete;
  Collection& operator=(const Collection&) = delete;

  /// Enqueues a copy of `rows` rows of `width` bytes, `stride` apart, to `destination`, contiguous,
  /// which is not there before finish().
  void add(std::byte* destination, const std::byte* source, std::size_t stride, std::size_t width,
           std::size_t rows);
  /// Waits until everything is in its place.
  void finish();

 private:
  /// Bytes of one tensor in a chunk.
  struct Part {
    std::byte* destination;
    const std::byte* source;
    std::size_t bytes;
  };

  /// Opens the next chunk, which the oldest one has to become when all are under way.
  void open_next();
  /// Copies from the oldest chunk, which is filled.
  void empty_oldest();

  const Staging& staging_;
  cudaStream_t stream_;
  std::array<std::vector<Part>, Staging::kChunks> parts_;
  std::size_t oldest_ = 0, open_ = 0;  ///< numbers of chunks, which go on without end
  std::size_t used_ = 0;               ///< bytes of the open one
};

}  // namespace fp8lab::cuda
