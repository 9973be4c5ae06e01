// Device memory for tensors, allocated in a few large pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/runtime/cuda_handles.hpp"

namespace fp8lab::cuda {

/// Allocations lie one after another and are freed in reverse order. reserve() creates one piece;
/// an allocation that does not fit into the last piece gets a piece of its own.
///
///   pieces   [ reserve(40)                        ] [ 24 ]
///   used     [ 16 | 8 | 16 .......................] [ 24 ]
class Arena {
 public:
  /// Reserves one piece for the next allocations, `bytes` in all. Throws RuntimeFailure if the
  /// device has not enough memory.
  void reserve(std::size_t bytes);
  /// Precondition: `bytes` is a multiple of the alignment that tensors need.
  std::byte* allocate(std::size_t bytes);

  std::size_t count() const { return ends_.size(); }  ///< number of allocations
  std::size_t bytes() const { return bytes_; }        ///< their total size
  /// Keeps the first `count` allocations and frees pieces without any. Precondition: no operation
  /// on the device uses the others any more.
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
  std::vector<End> ends_;  ///< piece and size of each allocation
  std::size_t bytes_ = 0;
};

}  // namespace fp8lab::cuda
