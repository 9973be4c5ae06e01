// Device memory for tensors, from few large pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {

/// Allocations lie one after another and are freed from the last one on. What was reserved before
/// makes one piece; an allocation that fits into none gets a piece of its own.
///
///   pieces   [ reserve(40)                        ] [ 24 ]
///   used     [ 16 | 8 | 16 .......................] [ 24 ]
class Arena {
 public:
  /// Room for the next allocations of `bytes` in all. Throws RuntimeFailure where the device lacks
  /// the memory.
  void reserve(std::size_t bytes);
  /// `bytes` must be a multiple of the alignment that tensors need.
  std::byte* allocate(std::size_t bytes);

  std::size_t count() const { return ends_.size(); }  ///< allocations
  std::size_t bytes() const { return bytes_; }        ///< that they take
  /// Keeps the first `count` allocations; pieces without any are freed. Nothing on the device may
  /// use the others any more.
  void release_to(std::size_t count);

 private:
  struct Piece {
    std::unique_ptr<DeviceArray<std::byte>> memory;
    std::size_t used = 0;
    std::size_t room() const { return memory->size() - used; }
  };
  struct End {
    std::size_t piece, bytes;
  };

  std::vector<Piece> pieces_;
  std::vector<End> ends_;  ///< of each allocation: its piece and size
  std::size_t bytes_ = 0;
};

}  // namespace fp8lab::cuda
