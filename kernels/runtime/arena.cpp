#include "kernels/runtime/arena.hpp"

namespace fp8lab::cuda {

void Arena::reserve(std::size_t bytes) {
  if (bytes == 0 || (!pieces_.empty() && pieces_.back().room() >= bytes)) return;
  pieces_.push_back({std::make_unique<DeviceArray<std::byte>>(bytes), 0});
}

std::byte* Arena::allocate(std::size_t bytes) {
  reserve(bytes);
  Piece& piece = pieces_.back();
  std::byte* const memory = piece.memory->data() + piece.used;
  piece.used += bytes;
  bytes_ += bytes;
  ends_.push_back({pieces_.size() - 1, bytes});
  return memory;
}

void Arena::release_to(std::size_t count) {
  FP8LAB_ASSERT(count <= ends_.size());
  while (ends_.size() > count) {
    const End end = ends_.back();
    ends_.pop_back();
    pieces_[end.piece].used -= end.bytes;
    bytes_ -= end.bytes;
  }
  while (!pieces_.empty() && pieces_.back().used == 0) pieces_.pop_back();
}

}  // namespace fp8lab::cuda
