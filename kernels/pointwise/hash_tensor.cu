// Identity of a tensor's bits: the terms of numerics::hash_term, summed. Integer additions modulo
// 2^64 may come in any order.
#include <cstdint>

#include "emulation/numerics/operand_hash.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

using Sum = unsigned long long;  // as atomicAdd takes it

constexpr int kThreads = 256, kBlocksOfMultiprocessor = 8;
constexpr std::int64_t kWord = sizeof(std::uint64_t);

/// What a thread reads at once.
struct alignas(2 * kWord) WordPair {
  std::uint64_t first, second;
};

/// Adds the sum over the threads of a block, which must all call it, to *total.
__device__ void add_block(Sum mine, Sum* total) {
  __shared__ Sum of_warps[kThreads / kWarpSize];
  const auto over_lanes = [](Sum sum, int lanes) {
    for (int span = lanes / 2; span > 0; span /= 2) sum += __shfl_xor_sync(kAllLanes, sum, span);
    return sum;
  };
  mine = over_lanes(mine, kWarpSize);
  if (lane_id() == 0) of_warps[warp_id()] = mine;
  __syncthreads();
  if (warp_id() != 0) return;
  constexpr int kWarps = kThreads / kWarpSize;
  mine = over_lanes(of_warps[lane_id() % kWarps], kWarps);
  if (lane_id() == 0) atomicAdd(total, mine);
}

/// Words in pairs, one after the other, counted from `first` on.
__global__ void __launch_bounds__(kThreads)
    hash_words_kernel(numerics::HashedPart part, const WordPair* pairs, std::int64_t count,
                      std::uint64_t first, Sum* total) {
  Sum sum = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
#pragma unroll 4
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const WordPair pair = pairs[i];
    const std::uint64_t word = first + 2 * static_cast<std::uint64_t>(i);
    sum += numerics::hash_term(part, word, pair.first);
    sum += numerics::hash_term(part, word + 1, pair.second);
  }
  add_block(sum, total);
}

/// Up to 8 bytes as a little-endian word.
__device__ std::uint64_t load_word(const std::byte* bytes, std::int64_t count) {
  std::uint64_t word = 0;
  for (int i = 0; i < kWord && i < count; ++i) {
    word |= static_cast<std::uint64_t>(bytes[i]) << 8 * i;
  }
  return word;
}

/// Rows of `bytes` bytes, `stride` bytes apart, whose words are counted from `first` on.
__global__ void __launch_bounds__(kThreads)
    hash_rows_kernel(numerics::HashedPart part, const std::byte* data, std::int64_t rows,
                     std::int64_t bytes, std::int64_t stride, std::uint64_t first, Sum* total) {
  const std::int64_t words = (bytes + kWord - 1) / kWord;
  Sum sum = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * words;
       i += step) {
    const std::int64_t at = i % words * kWord;
    sum += numerics::hash_term(part, first + static_cast<std::uint64_t>(i),
                               load_word(data + i / words * stride + at, bytes - at));
  }
  add_block(sum, total);
}

}  // namespace

void run(Context& context, const ops::HashTensor& op) {
  op.check();
  context.catch_up();  // the tensor may be a record of statistics
  const TensorView& view = op.tensor;
  if (view.size() == 0) return;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t bytes = view.cols * size;
  constexpr auto kPair = static_cast<std::int64_t>(sizeof(WordPair));
  const bool is_whole = view.contiguous() && bytes % kWord == 0 && view.rows * bytes % kPair == 0 &&
                        reinterpret_cast<std::uintptr_t>(view.data) % kPair == 0;
  const auto blocks = [&](std::int64_t items) {
    return grid_size((items + kThreads - 1) / kThreads,
                     std::int64_t{context.multiprocessors()} * kBlocksOfMultiprocessor);
  };
  auto* const total = static_cast<Sum*>(op.sum.data);
  if (is_whole) {
    const std::int64_t pairs = view.rows * bytes / kPair;
    hash_words_kernel<<<blocks(pairs), kThreads, 0, context.stream()>>>(
        op.part, static_cast<const WordPair*>(view.data), pairs, op.first, total);
  } else {
    hash_rows_kernel<<<blocks(static_cast<std::int64_t>(op.words())), kThreads, 0,
                       context.stream()>>>(op.part, static_cast<const std::byte*>(view.data),
                                           view.rows, bytes, view.row_stride * size, op.first,
                                           total);
  }
  check_launch("hash_tensor");
}

}  // namespace fp8lab::cuda
