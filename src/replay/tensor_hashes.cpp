#include "src/replay/tensor_hashes.hpp"

#include <utility>

namespace fp8lab {
namespace {

constexpr std::int64_t kCapacity = 4096;

}  // namespace

TensorHashes::TensorHashes(Backend& backend)
    : backend_(backend), sums_(backend.allocate(DType::u8, kCapacity, sizeof(std::uint64_t))) {}

void TensorHashes::add(const TensorView& tensor) {
  if (pending_ == kCapacity) drain();
  backend_.run(
      ops::HashTensors{{&tensor, 1}, numerics::HashedPart::codes, 0, sums_.row_range(pending_, 1)});
  ++pending_;
}

void TensorHashes::drain() {
  const std::size_t before = read_.size();
  read_.resize(before + static_cast<std::size_t>(pending_));
  const TensorView filled = sums_.row_range(0, pending_);
  backend_.download(read_.data() + before, filled);
  backend_.fill_zero(filled);
  pending_ = 0;
}

std::vector<std::uint64_t> TensorHashes::take() {
  if (pending_ > 0) drain();
  return std::exchange(read_, {});
}

}  // namespace fp8lab
