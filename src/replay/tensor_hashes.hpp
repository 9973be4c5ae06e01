// Hashes many tensors in backend memory and reads all hashes at once.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/backend.hpp"

namespace fp8lab {

class TensorHashes {
 public:
  /// Precondition: `backend` outlives this.
  explicit TensorHashes(Backend& backend);

  /// Enqueues the hash of `tensor` in its present state.
  void add(const TensorView& tensor);
  /// Waits, and returns the hashes of all tensors added since the last call, in order.
  std::vector<std::uint64_t> take();

 private:
  void drain();

  Backend& backend_;
  TensorView sums_;  ///< u8, one hash per row
  std::int64_t pending_ = 0;
  std::vector<std::uint64_t> read_;
};

}  // namespace fp8lab
