#include "src/validate/compare_case.hpp"

#include <cstring>

namespace fp8lab {
namespace {

constexpr std::byte kGuardByte{0x5A};
constexpr std::int64_t kGuardRows = 1;
constexpr std::int64_t kGap = 16;  ///< elements after each row; keeps even rows aligned

/// A tensor of one case in backend memory.
struct Placed {
  TensorView buffer;  ///< includes the guards
  TensorView view;
  std::vector<std::byte> initial;
};

Placed place(Backend& backend, const HostTensor& tensor) {
  const std::int64_t gap = tensor.contiguous || tensor.rows == 1 ? 0 : kGap;
  const std::int64_t stride = tensor.cols + gap;
  Placed placed;
  placed.buffer = backend.allocate(tensor.dtype, tensor.rows + 2 * kGuardRows, stride);
  placed.view = placed.buffer.row_range(kGuardRows, tensor.rows).columns(0, tensor.cols);
  const std::size_t size = size_of(tensor.dtype);
  placed.initial.assign(static_cast<std::size_t>(placed.buffer.size()) * size, kGuardByte);
  const std::size_t width = static_cast<std::size_t>(tensor.cols) * size;
  for (std::int64_t r = 0; r < tensor.rows; ++r) {
    std::memcpy(placed.initial.data() + static_cast<std::size_t>((r + kGuardRows) * stride) * size,
                tensor.data.data() + static_cast<std::size_t>(r) * width, width);
  }
  return placed;
}

/// Runs the case and returns all bytes of all buffers afterwards, including guards.
std::vector<std::vector<std::byte>> run_case(const OperationCase& drawn, Backend& backend,
                                             std::vector<Placed>& placed) {
  std::vector<TensorView> views;
  for (Placed& tensor : placed) {
    backend.upload(tensor.buffer, tensor.initial.data());
    views.push_back(tensor.view);
  }
  drawn.run(backend, views);
  std::vector<std::vector<std::byte>> after;
  for (const Placed& tensor : placed) {
    after.emplace_back(tensor.initial.size());
    backend.download(after.back().data(), tensor.buffer);
  }
  return after;
}

std::uint64_t bits_at(const std::vector<std::byte>& bytes, std::size_t element, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + element * size, size);
  return bits;
}

/// Compares one buffer in every element, including guards and tensors that are only read.
void compare_buffer(const OperationCase& drawn, std::size_t index, const Placed& placed,
                    const std::vector<std::byte>& expected, const std::vector<std::byte>& actual,
                    std::optional<KernelMismatch>& mismatch) {
  if (expected == actual) return;
  const std::size_t size = size_of(placed.buffer.dtype);
  const std::int64_t stride = placed.buffer.cols;
  for (std::int64_t i = 0; i < placed.buffer.size(); ++i) {
    const auto element = static_cast<std::size_t>(i);
    const std::uint64_t want = bits_at(expected, element, size);
    const std::uint64_t got = bits_at(actual, element, size);
    if (want == got) continue;
    if (!mismatch) {
      const std::int64_t row = i / stride - kGuardRows, col = i % stride;
      const bool guard = row < 0 || row >= placed.view.rows || col >= placed.view.cols ||
                         !drawn.tensors[index].output;
      mismatch = KernelMismatch{drawn.name, drawn.what, index, row, col, want, got, 0, guard};
    }
    ++mismatch->count;
  }
}

}  // namespace

std::optional<KernelMismatch> compare_case(const OperationCase& drawn, Backend& expected,
                                           Backend& tested, int repeats, std::uint64_t& compared) {
  const auto prepare = [&drawn](Backend& backend) {
    std::vector<Placed> placed;
    for (const HostTensor& tensor : drawn.tensors) placed.push_back(place(backend, tensor));
    return placed;
  };
  const std::size_t expected_mark = expected.memory_mark();
  std::vector<Placed> reference = prepare(expected);
  const auto want = run_case(drawn, expected, reference);
  expected.release_to(expected_mark);

  const std::size_t tested_mark = tested.memory_mark();
  std::vector<Placed> placed = prepare(tested);
  std::optional<KernelMismatch> mismatch;
  for (int repeat = 0; repeat < repeats && !mismatch; ++repeat) {
    const auto got = run_case(drawn, tested, placed);
    for (std::size_t i = 0; i < placed.size(); ++i) {
      compare_buffer(drawn, i, placed[i], want[i], got[i], mismatch);
    }
  }
  tested.release_to(tested_mark);
  for (const HostTensor& tensor : drawn.tensors) {
    if (tensor.output) compared += static_cast<std::uint64_t>(tensor.rows * tensor.cols);
  }
  return mismatch;
}

}  // namespace fp8lab
