#include "kernels/pointwise/hash_tensor.hpp"

#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
/// Up to 8 bytes as a little-endian word.
__device__ std::uint64_t load_word(const std::byte* bytes, std::int64_t count) {
  constexpr auto kWord = static_cast<std::int64_t>(sizeof(std::uint64_t));
  if (count >= kWord && reinterpret_cast<std::uintptr_t>(bytes) % kWord == 0) {
    return *reinterpret_cast<const std::uint64_t*>(bytes);
  }
  std::uint64_t word = 0;
  for (int i = 0; i < kWord && i < count; ++i) {
    word |= static_cast<std::uint64_t>(bytes[i]) << 8 * i;
  }
  return word;
}

/// Adds the sums of a block's warps to *total.
__device__ void add_sums(HashSum sum, HashSum* total) {
  for (int span = kWarpSize / 2; span > 0; span /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, span);
  }
  if (lane_id() == 0) atomicAdd(total, sum);
}

/// Adds the terms of a matrix, counted from `first` on, to *total: rows of `bytes` bytes, `stride`
/// bytes apart, in words of `word` bytes.
__global__ void hash_kernel(numerics::HashedPart part, const std::byte* data, std::int64_t rows,
                            std::int64_t bytes, std::int64_t stride, int word, std::uint64_t first,
                            HashSum* total) {
  const std::int64_t words = (bytes + word - 1) / word;
  HashSum sum = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * words;
       i += step) {
    const std::int64_t at = i % words * word;
    const std::int64_t count = min(bytes - at, std::int64_t{word});
    sum += numerics::hash_term(part, first + static_cast<std::uint64_t>(i),
                               load_word(data + i / words * stride + at, count));
  }
  add_sums(sum, total);
}

/// The same for columns of `rows` elements: neighbouring threads read neighbouring columns.
template <class Bits>
__global__ void hash_columns_kernel(numerics::HashedPart part, const Bits* data, std::int64_t rows,
                                    std::int64_t cols, std::int64_t stride, HashSum* total) {
  constexpr int kElements = sizeof(std::uint64_t) / sizeof(Bits);
  const std::int64_t words = (rows + kElements - 1) / kElements;
  HashSum sum = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < cols * words;
       i += step) {
    const std::int64_t at = i / cols, col = i % cols;
    std::uint64_t word = 0;
    for (int j = 0; j < kElements && at * kElements + j < rows; ++j) {
      const std::uint64_t bits = data[(at * kElements + j) * stride + col];
      word |= bits << 8 * sizeof(Bits) * j;
    }
    sum += numerics::hash_term(part, static_cast<std::uint64_t>(col * words + at), word);
  }
  add_sums(sum, total);
}

unsigned hash_blocks(const Context& context, const TensorView& view) {
  return grid_size((view.size() + kThreads - 1) / kThreads,
                   static_cast<std::int64_t>(context.multiprocessors()) * 8);
}

}  // namespace

void add_hash(Context& context, numerics::HashedPart part, const TensorView& view, int word_bytes,
              std::uint64_t first, HashSum* total) {
  if (view.size() == 0) return;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  hash_kernel<<<hash_blocks(context, view), kThreads, 0, context.stream()>>>(
      part, static_cast<const std::byte*>(view.data), view.rows, view.cols * size,
      view.row_stride * size, word_bytes, first, total);
  check_launch("hash_tensor");
}

void add_transposed_hash(Context& context, numerics::HashedPart part, const TensorView& view,
                         HashSum* total) {
  if (view.size() == 0) return;
  const auto launch = [&](const auto* data) {
    hash_columns_kernel<<<hash_blocks(context, view), kThreads, 0, context.stream()>>>(
        part, data, view.rows, view.cols, view.row_stride, total);
  };
  if (view.dtype == DType::bf16) {
    launch(static_cast<const std::uint16_t*>(view.data));
  } else {
    launch(static_cast<const std::uint32_t*>(view.data));
  }
  check_launch("hash of a transpose");
}

void run(Context& context, const ops::HashTensor& op) {
  op.check();
  context.catch_up();  // the tensor may be a record of statistics
  add_hash(context, op.part, op.tensor, sizeof(std::uint64_t), op.first,
           static_cast<HashSum*>(op.sum.data));
}

}  // namespace fp8lab::cuda
