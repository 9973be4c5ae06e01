#include "emulation/cases/compare_case.hpp"

#include <algorithm>
#include <cstring>

namespace fp8lab {
namespace {

constexpr std::byte kGuardByte{0x5A};
constexpr std::int64_t kGuardElements = 64;  ///< before and after a tensor; keeps rows aligned

std::uint64_t bits_at(std::span<const std::byte> bytes, std::size_t element, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + element * size, size);
  return bits;
}

std::vector<PlacedTensor> place(const OperationCase& drawn, Backend& backend,
                                const RowLayout& layout) {
  std::vector<PlacedTensor> placed;
  for (const HostTensor& tensor : drawn.tensors) placed.emplace_back(backend, tensor, layout);
  return placed;
}

/// Runs the case and returns all bytes of all buffers afterwards, including guards.
std::vector<std::vector<std::byte>> run_case(const OperationCase& drawn, Backend& backend,
                                             const std::vector<PlacedTensor>& placed) {
  std::vector<TensorView> views;
  for (const PlacedTensor& tensor : placed) {
    tensor.upload();
    views.push_back(tensor.view());
  }
  drawn.run(backend, views);
  std::vector<std::vector<std::byte>> after;
  for (const PlacedTensor& tensor : placed) after.push_back(tensor.download());
  return after;
}

}  // namespace

PlacedTensor::PlacedTensor(Backend& backend, const HostTensor& tensor, const RowLayout& layout)
    : backend_(&backend), tensor_(&tensor) {
  const RowLayout rows = tensor.layout ? *tensor.layout : tensor.contiguous ? RowLayout{} : layout;
  const std::int64_t stride = tensor.cols + (tensor.rows == 1 ? 0 : rows.gap);
  first_ = kGuardElements + rows.offset;
  buffer_ = backend.allocate(tensor.dtype, 1, first_ + tensor.rows * stride + kGuardElements);
  view_ = {static_cast<std::byte*>(buffer_.data) +
               static_cast<std::size_t>(first_) * size_of(tensor.dtype),
           tensor.dtype, tensor.rows, tensor.cols, stride};
}

void PlacedTensor::upload() const {
  const std::size_t size = size_of(tensor_->dtype);
  std::vector<std::byte> initial(static_cast<std::size_t>(buffer_.size()) * size, kGuardByte);
  const std::size_t width = static_cast<std::size_t>(tensor_->cols) * size;
  for (std::int64_t r = 0; r < tensor_->rows && width > 0; ++r) {
    std::memcpy(initial.data() + static_cast<std::size_t>(first_ + r * view_.row_stride) * size,
                tensor_->data.data() + static_cast<std::size_t>(r) * width, width);
  }
  upload(initial);
}

void PlacedTensor::upload(std::span<const std::byte> bytes) const {
  backend_->upload(buffer_, bytes.data());
}

std::vector<std::byte> PlacedTensor::download() const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(buffer_.size()) * size_of(buffer_.dtype));
  backend_->download(bytes.data(), buffer_);
  return bytes;
}

std::optional<KernelMismatch> PlacedTensor::difference(std::span<const std::byte> expected,
                                                       std::span<const std::byte> actual) const {
  if (std::equal(expected.begin(), expected.end(), actual.begin(), actual.end())) return {};
  KernelMismatch mismatch;
  const std::size_t size = size_of(buffer_.dtype);
  for (std::int64_t i = 0; i < buffer_.size(); ++i) {
    const auto element = static_cast<std::size_t>(i);
    const std::uint64_t want = bits_at(expected, element, size);
    const std::uint64_t got = bits_at(actual, element, size);
    if (want == got || mismatch.count++ > 0) continue;
    const std::int64_t inside = i - first_, stride = std::max<std::int64_t>(view_.row_stride, 1);
    mismatch.row = inside < 0 ? -1 : inside / stride;
    mismatch.col = inside < 0 ? inside : inside % stride;
    mismatch.expected = want;
    mismatch.actual = got;
    mismatch.guard = mismatch.row < 0 || mismatch.row >= view_.rows || mismatch.col >= view_.cols ||
                     !tensor_->output;
  }
  return mismatch;
}

std::optional<KernelMismatch> compare_case(const OperationCase& drawn, Backend& expected,
                                           Backend& tested, const RowLayout& layout, int repeats,
                                           std::uint64_t& compared) {
  const std::size_t expected_mark = expected.memory_mark();
  const auto want = run_case(drawn, expected, place(drawn, expected, layout));
  expected.release_to(expected_mark);

  const std::size_t tested_mark = tested.memory_mark();
  const std::vector<PlacedTensor> placed = place(drawn, tested, layout);
  std::optional<KernelMismatch> mismatch;
  for (int repeat = 0; repeat < repeats && !mismatch; ++repeat) {
    const auto got = run_case(drawn, tested, placed);
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const auto found = placed[i].difference(want[i], got[i]);
      if (!found) continue;
      const std::int64_t before = mismatch ? mismatch->count : 0;
      if (!mismatch) {
        mismatch = *found;
        mismatch->kernel = drawn.name;
        mismatch->what = drawn.what;
        mismatch->tensor = i;
      }
      mismatch->count = before + found->count;
    }
  }
  tested.release_to(tested_mark);
  for (const HostTensor& tensor : drawn.tensors) {
    if (tensor.output) compared += static_cast<std::uint64_t>(tensor.rows * tensor.cols);
  }
  return mismatch;
}

}  // namespace fp8lab
