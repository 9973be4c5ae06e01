#include "src/model/workspace.hpp"

#include <algorithm>
#include <vector>

namespace fp8lab {
namespace {

constexpr std::int64_t kAlignment = 256;  // bytes; tensor maps and vector loads ask for less

constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void Workspace::reserve(const std::string& name, LiveRange live, DType dtype, std::int64_t rows,
                        std::int64_t cols) {
  FP8LAB_ASSERT(!bytes_);
  std::int64_t& bytes = buffers_[{name, live}].bytes;
  bytes = std::max(bytes, rows * cols * static_cast<std::int64_t>(size_of(dtype)));
}

void Workspace::allocate() {
  const std::int64_t bytes = place();
  if (bytes > 0) use(backend_.allocate(DType::u8, 1, bytes));
}

void Workspace::use(const TensorView& memory) {
  FP8LAB_ASSERT(bytes_ && memory.cols >= *bytes_);
  memory_ = memory;
}

std::int64_t Workspace::place() {
  struct Placed {
    LiveRange live;
    Buffer* buffer;
  };
  std::vector<Placed> waiting;
  for (auto& [key, buffer] : buffers_) waiting.push_back({key.second, &buffer});
  std::stable_sort(waiting.begin(), waiting.end(), [](const Placed& a, const Placed& b) {
    return a.buffer->bytes > b.buffer->bytes;
  });
  std::vector<Placed> placed;  // in the order of their offsets
  std::int64_t total = 0;
  for (const Placed& next : waiting) {
    std::int64_t offset = 0;
    for (const Placed& other : placed) {
      if (!other.live.meets(next.live)) continue;
      if (offset + next.buffer->bytes <= other.buffer->offset) break;
      offset = std::max(offset, aligned(other.buffer->offset + other.buffer->bytes));
    }
    next.buffer->offset = offset;
    total = std::max(total, offset + next.buffer->bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), next,
                                   [](const Placed& a, const Placed& b) {
                                     return a.buffer->offset < b.buffer->offset;
                                   }),
                  next);
  }
  bytes_ = total;
  return total;
}

TensorView Workspace::view(const std::string& name, LiveRange live, DType dtype, std::int64_t rows,
                           std::int64_t cols) const {
  FP8LAB_ASSERT(is_live(live));
  const Buffer& buffer = buffers_.at({name, live});
  FP8LAB_ASSERT(rows * cols * static_cast<std::int64_t>(size_of(dtype)) <= buffer.bytes);
  return {view_of(buffer).data, dtype, rows, cols, cols};
}

void Workspace::enter(PassPhase next) {
  if (current_ == next) return;
  for (const auto& [key, buffer] : buffers_) {
    const LiveRange& live = key.second;
    const bool goes_on = current_ && live.has(*current_);
    if (live.has(next) && !goes_on) backend_.discard(view_of(buffer));
  }
  current_ = next;
}

}  // namespace fp8lab
