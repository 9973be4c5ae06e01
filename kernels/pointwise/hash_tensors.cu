// Hash of the bits of tensors: the sum of numerics::hash_term. Additions modulo
// 2^64 may happen in any order.
#include <cstdint>

#include "emulation/numerics/operand_hash.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/runtime/context.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

using Sum = unsigned long long;  // the type of atomicAdd

constexpr int kThreads = 256, kBlocksOfMultiprocessor = 8;
constexpr std::int64_t kWord = sizeof(std::uint64_t);

/// The words that a thread reads in one access.
struct alignas(2 * kWord) WordPair {
  std::uint64_t first, second;
};

/// Adds the sum over the threads of a block to *total. Precondition: every
/// thread of the block calls it.
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

/// Tensors that consist of whole pairs of words, for one launch.
struct WholeTensors {
  static constexpr int kMost = 160;  // fits into the 4 KB of a kernel's arguments

  struct Tensor {
    const WordPair* pairs;
    std::uint64_t first_word;  ///< index of its first word
    std::int64_t first_pair;   ///< number of pairs of the tensors before it
  };
  Tensor of[kMost];
  int count;
  std::int64_t pairs;  ///< total number

  __device__ std::int64_t end(int tensor) const {
    return tensor + 1 < count ? of[tensor + 1].first_pair : pairs;
  }
};
static_assert(sizeof(WholeTensors) + 64 <= 4096);

/// Hashes an equal share of all pairs in each block.
__global__ void __launch_bounds__(kThreads)
    hash_words_kernel(numerics::HashedPart part, const __grid_constant__ WholeTensors tensors,
                      Sum* total) {
  const std::int64_t share = (tensors.pairs + gridDim.x - 1) / gridDim.x;
  const std::int64_t begin = share * blockIdx.x, end = min(begin + share, tensors.pairs);
  int tensor = 0;
  Sum sum = 0;
  for (std::int64_t at = begin; at < end;) {
    while (tensors.end(tensor) <= at) ++tensor;
    const WholeTensors::Tensor& own = tensors.of[tensor];
    const std::int64_t stop = min(end, tensors.end(tensor));
#pragma unroll 4
    for (std::int64_t i = at + threadIdx.x; i < stop; i += kThreads) {
      const WordPair pair = own.pairs[i - own.first_pair];
      const std::uint64_t word =
          own.first_word + 2 * static_cast<std::uint64_t>(i - own.first_pair);
      sum += numerics::hash_term(part, word, pair.first);
      sum += numerics::hash_term(part, word + 1, pair.second);
    }
    at = stop;
  }
  add_block(sum, total);
}

/// Returns up to 8 bytes as a little-endian word.
__device__ std::uint64_t load_word(const std::byte* bytes, std::int64_t count) {
  std::uint64_t word = 0;
  for (int i = 0; i < kWord && i < count; ++i) {
    word |= static_cast<std::uint64_t>(bytes[i]) << 8 * i;
  }
  return word;
}

/// Hashes rows of `bytes` bytes that are `stride` bytes apart; their words count from `first` on.
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

unsigned blocks_of(const Context& context, std::int64_t items) {
  return grid_size((items + kThreads - 1) / kThreads,
                   std::int64_t{context.multiprocessors()} * kBlocksOfMultiprocessor);
}

constexpr auto kPair = static_cast<std::int64_t>(sizeof(WordPair));

std::int64_t row_bytes(const TensorView& view) {
  return view.cols * static_cast<std::int64_t>(size_of(view.dtype));
}
bool is_whole(const TensorView& view) {
  const std::int64_t bytes = row_bytes(view);
  return view.contiguous() && bytes % kWord == 0 && view.rows * bytes % kPair == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % kPair == 0;
}

/// Hashes the collected tensors in one launch, and clears the list.
void hash_whole(Context& context, numerics::HashedPart part, WholeTensors& tensors, Sum* total) {
  if (tensors.count == 0) return;
  hash_words_kernel<<<blocks_of(context, tensors.pairs), kThreads, 0, context.stream()>>>(
      part, tensors, total);
  check_launch("hash_tensors");
  tensors.count = 0;
  tensors.pairs = 0;
}

void hash_rows(Context& context, numerics::HashedPart part, const TensorView& view,
               std::uint64_t first, Sum* total) {
  const auto words = static_cast<std::int64_t>(ops::HashTensors::words(view));
  hash_rows_kernel<<<blocks_of(context, words), kThreads, 0, context.stream()>>>(
      part, static_cast<const std::byte*>(view.data), view.rows, row_bytes(view),
      view.row_stride * static_cast<std::int64_t>(size_of(view.dtype)), first, total);
  check_launch("hash_tensors");
}

}  // namespace

void run(Context& context, const ops::HashTensors& op) {
  op.check();
  context.catch_up();  // a tensor may be a record of statistics
  auto* const total = static_cast<Sum*>(op.sum.data);
  WholeTensors whole{};
  op.for_each([&](const TensorView& view, std::uint64_t first) {
    if (view.size() == 0) return;
    if (!is_whole(view)) return hash_rows(context, op.part, view, first, total);
    if (whole.count == WholeTensors::kMost) hash_whole(context, op.part, whole, total);
    whole.of[whole.count++] = {static_cast<const WordPair*>(view.data), first, whole.pairs};
    whole.pairs += view.rows * row_bytes(view) / kPair;
  });
  hash_whole(context, op.part, whole, total);
}

}  // namespace fp8lab::cuda
