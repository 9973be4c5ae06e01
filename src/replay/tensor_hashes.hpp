// Hashes of many tensors in backend memory, read once.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

class TensorHashes {
 public:
  /// `backend` must outlive this.
  explicit TensorHashes(Backend& backend);

  /// Enqueues the hash of `tensor` as it is now.
  void add(const TensorView& tensor);
  /// Those of all tensors added since the last call, in order; waits for them.
  std::vector<std::uint64_t> take();

 private:
  void drain();

  Backend& backend_;
  TensorView sums_;  ///< u8, a hash a row
  std::int64_t pending_ = 0;
  std::vector<std::uint64_t> read_;
};

}  // namespace fp8lab
