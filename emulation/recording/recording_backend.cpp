#include "emulation/recording/recording_backend.hpp"

#include <algorithm>

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

constexpr std::uintptr_t kFirstAddress = 1 << 20, kAlignment = 64;

}  // namespace

RecordingBackend::RecordingBackend(const Backend& original)
    : StandIn(original), is_checked_(original.storage(DType::f32) == DType::f32) {}

TensorView RecordingBackend::allocate(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::size_t bytes = allocation_bytes(dtype, rows, cols);
  std::uintptr_t address = kFirstAddress;
  if (!allocations_.empty()) {
    const Allocation& last = allocations_.back();
    address = last.address + (last.bytes / kAlignment + 1) * kAlignment;
  }
  allocations_.push_back({address, bytes});
  held_ += bytes;
  peak_ = std::max(peak_, held_);
  // A unique number that identifies the tensor; never dereferenced.
  void* const name = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  return {name, dtype, rows, cols, cols};
}

void RecordingBackend::release_to(std::size_t mark) {
  FP8LAB_ASSERT(mark <= allocations_.size());
  for (std::size_t i = mark; i < allocations_.size(); ++i) held_ -= allocations_[i].bytes;
  allocations_.resize(mark);
}

void RecordingBackend::download_all(std::span<const Download>) {
  throw Error("a recording of backend '" + name() + "' has no values to read back");
}

void RecordingBackend::fill_zero(const TensorView& view) { add(log_, FillZero{view}); }

}  // namespace fp8lab
