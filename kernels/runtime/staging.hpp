// Copies between host and device: uploads without waiting, downloads with one wait for many.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {

/// Page-locked memory of one stream, which the copy engine accesses by itself:
///
///   upload     host -> slots -> device    the host waits only for slots of the previous round that
///                                         the stream has not emptied yet
///   download   device -> chunks -> host   by Collection, which waits until all data has arrived
///
/// Chunks and slots share their memory: the stream reads slots before it fills chunks, and
/// nobody uploads before the chunks are empty again. All OpenMP threads take part in the
/// host side of a large copy.
class Staging {
 public:
  Staging();
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Enqueues a copy of `rows` rows of `width` bytes, contiguous at `source`, to rows that are
  /// `stride` bytes apart at `destination`. The caller may reuse `source` at once.
  void upload(std::byte* destination, std::size_t stride, const std::byte* source,
              std::size_t width, std::size_t rows, cudaStream_t stream);

  static constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
  static constexpr std::size_t kChunks = 4;
  std::byte* chunk(std::size_t number) const { return memory_ + number % kChunks * kChunkBytes; }
  /// Returns the event of the copies into that chunk.
  cudaEvent_t filled(std::size_t number) const { return filled_[number % kChunks]; }

 private:
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 18;
  static constexpr std::size_t kSlots = kChunks * kChunkBytes / kSlotBytes;

  /// Waits for and takes consecutive slots from first_ to end_, at least
  /// `bytes` and at most a chunk.
  std::byte* take_slots(std::size_t bytes);
  /// Marks these slots as free after the work that is in the stream now.
  void give_slots(cudaStream_t stream);

  std::byte* memory_ = nullptr;
  std::size_t first_ = 0, end_ = 0;
  std::array<cudaEvent_t, kSlots> emptied_{};
  std::array<std::size_t, kSlots> event_of_{};  ///< by slot: the event after which it is empty
  std::array<cudaEvent_t, kChunks> filled_{};
};

/// Tensors on their way to the host, packed one behind another into the chunks: while the stream
/// fills some chunks, the host copies from the oldest.
class Collection {
 public:
  Collection(const Staging& staging, cudaStream_t stream) : staging_(staging), stream_(stream) {}
  /// After an exception, waits until nothing writes into the chunks.
  ~Collection();
  Collection(const Collection&) = delete;
  Collection& operator=(const Collection&) = delete;

  /// Enqueues a copy of `rows` rows of `width` bytes, `stride` apart, to contiguous memory at
  /// `destination`, which is valid only after finish().
  void add(std::byte* destination, const std::byte* source, std::size_t stride, std::size_t width,
           std::size_t rows);
  /// Waits until all data has reached its destination.
  void finish();

 private:
  /// Bytes of one tensor in a chunk.
  struct Part {
    std::byte* destination;
    const std::byte* source;
    std::size_t bytes;
  };

  /// Opens the next chunk; if all chunks are in flight, empties the oldest one first.
  void open_next();
  /// Waits until the oldest chunk is filled, and copies from it.
  void empty_oldest();

  const Staging& staging_;
  cudaStream_t stream_;
  std::array<std::vector<Part>, Staging::kChunks> parts_;
  std::size_t oldest_ = 0, open_ = 0;  ///< chunk numbers, which grow without bound
  std::size_t used_ = 0;               ///< bytes of the open chunk
};

}  // namespace fp8lab::cuda
