#include "src/interface/device.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "src/backend/factory.hpp"

namespace fp8lab::interface {
namespace {

constexpr std::size_t kSmallestBlock = 4096;

}  // namespace

Device::Device(const std::string& name, int index, int threads)
    : backend_(make_guest_backend(name, index, threads)) {}

Device::Turn::Turn(Device& device, void* stream) : device_(device), lock_(device.mutex_) {
  enqueue_on(*device.backend_, stream);
}

SmallMemory::SmallMemory(Device& device) : PassThrough(*device.backend_), device_(device) {}

SmallMemory::~SmallMemory() {
  const std::lock_guard<std::recursive_mutex> lock(device_.mutex_);
  for (const TensorView& block : blocks_) {
    device_.free_[static_cast<std::size_t>(block.cols)].push_back(block);
  }
}

TensorView SmallMemory::allocate(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::size_t bytes = original().allocation_bytes(dtype, rows, cols);
  const std::size_t size = std::max(kSmallestBlock, std::bit_ceil(bytes));
  std::vector<TensorView>& unused = device_.free_[size];
  const TensorView block = unused.empty()
                               ? original().allocate(DType::u8, 1, static_cast<std::int64_t>(size))
                               : unused.back();
  if (!unused.empty()) {
    unused.pop_back();
    original().fill_zero(block);
  }
  blocks_.push_back(block);
  return {block.data, dtype, rows, cols, cols};
}

}  // namespace fp8lab::interface
