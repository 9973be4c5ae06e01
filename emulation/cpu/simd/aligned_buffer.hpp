// Scratch memory aligned for vector loads.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace fp8lab::cpu {

/// Grow-only, uninitialised, 64-byte aligned memory.
class AlignedBuffer {
 public:
  /// Returns at least `bytes` bytes. Earlier contents are lost if the buffer has to grow.
  void* reserve(std::size_t bytes) {
    if (bytes > capacity_) {
      memory_.reset();
      capacity_ = 0;
      memory_.reset(::operator new(bytes, kAlignment));
      capacity_ = bytes;
    }
    return memory_.get();
  }
  template <class T>
  T* reserve_as(std::size_t count) {
    return static_cast<T*>(reserve(count * sizeof(T)));
  }
  void* data() const { return memory_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(void* pointer) const { ::operator delete(pointer, kAlignment); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace fp8lab::cpu
