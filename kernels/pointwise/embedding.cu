#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/pointwise/rows.cuh"
#include "kernels/runtime/cuda_handles.hpp"
#include "kernels/runtime/fault.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

__device__ bool outside(std::int64_t token, std::int64_t vocabulary) {
  return token < 0 || token >= vocabulary;
}

/// Copies rows of the table; leaves the rows of tokens outside the table unchanged.
template <class Table, class Out>
struct Gather {
  const std::int32_t* tokens;
  std::int64_t vocabulary;
  Rows<Table> table;
  Rows<Out> out;
  std::uint32_t* faults;

  __device__ void operator()(std::int64_t t, std::int64_t col, int count) const {
    const std::int64_t token = tokens[t];
    if (outside(token, vocabulary)) {
      report(faults, Fault::token_outside_table);
      return;
    }
    float values[kGroup];
    table.load_group(token, col, count, values);
    out.store_group(t, col, count, values);
  }
};

/// Writes sort keys and values: the token of each position, and the position. Tokens outside the
/// table become `vocabulary`, which sorts after all others.
__global__ void number_positions(std::int64_t count, std::int64_t vocabulary,
                                 const std::int32_t* tokens, std::uint32_t* keys,
                                 std::int32_t* positions, std::uint32_t* faults) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (t >= count) return;
  const bool bad = outside(tokens[t], vocabulary);
  if (bad) report(faults, Fault::token_outside_table);
  keys[t] = static_cast<std::uint32_t>(bad ? vocabulary : tokens[t]);
  positions[t] = static_cast<std::int32_t>(t);
}

/// Adds runs of equal tokens to dtable. A block handles one share of columns of the run that
/// starts at its sorted position. No other block adds to these elements, and it adds in ascending
/// order of the run's positions.
template <class D>
__global__ void add_runs(std::int64_t count, std::int64_t vocabulary, const std::uint32_t* keys,
                         const std::int32_t* positions, Rows<D> dout, std::int64_t cols,
                         Rows<float> dtable) {
  const std::int64_t start = blockIdx.x;
  const std::uint32_t token = keys[start];
  if (token == vocabulary || (start > 0 && keys[start - 1] == token)) return;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kGroup;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * blockDim.x * kGroup;
  for (std::int64_t col = first; col < cols; col += step) {
    const int width = cols - col < kGroup ? static_cast<int>(cols - col) : kGroup;
    float sum[kGroup];
    dtable.load_group(token, col, width, sum);
#pragma unroll 4
    for (std::int64_t i = start; i < count && keys[i] == token; ++i) {
      float values[kGroup];
      dout.load_group(positions[i], col, width, values);
      for (int j = 0; j < kGroup; ++j) sum[j] = sum[j] + values[j];
    }
    dtable.store_group(token, col, width, sum);
  }
}

constexpr std::size_t kAlignment = 256;

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Positions in the workspace, in ascending order of token and, for equal tokens, of
/// position (radix sort is stable).
struct SortedTokens {
  const std::uint32_t* keys;
  const std::int32_t* positions;
};

SortedTokens sort_tokens(Context& context, const TensorView& tokens, std::int64_t vocabulary) {
  const std::int64_t count = tokens.cols;
  const int key_bits =
      std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocabulary))));
  cub::DoubleBuffer<std::uint32_t> keys;
  cub::DoubleBuffer<std::int32_t> positions;
  std::size_t scratch_bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, scratch_bytes, keys, positions, count, 0, key_bits,
                                        context.stream()),
        "cub::DeviceRadixSort::SortPairs");
  const std::size_t part = padded(static_cast<std::size_t>(count) * sizeof(std::uint32_t));
  auto* memory = static_cast<std::byte*>(context.workspace(4 * part + scratch_bytes));
  for (int i = 0; i < 2; ++i) {
    keys.d_buffers[i] = reinterpret_cast<std::uint32_t*>(memory + i * part);
    positions.d_buffers[i] = reinterpret_cast<std::int32_t*>(memory + (2 + i) * part);
  }
  constexpr unsigned kThreads = 256;
  number_positions<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                     context.stream()>>>(count, vocabulary, tokens.row<std::int32_t>(0),
                                         keys.Current(), positions.Current(), context.faults());
  check_launch("embedding_backward: positions");
  check(cub::DeviceRadixSort::SortPairs(memory + 4 * part, scratch_bytes, keys, positions, count, 0,
                                        key_bits, context.stream()),
        "cub::DeviceRadixSort::SortPairs");
  return {keys.Current(), positions.Current()};
}

}  // namespace

void run(Context& context, const ops::EmbeddingForward& op) {
  op.check();
  with_rows(
      [&]<class Table, class Out>(const Rows<Table>& from, const Rows<Out>& to) {
        const Gather<Table, Out> body{op.tokens.row<std::int32_t>(0), op.table.rows, from, to,
                                      context.faults()};
        launch_groups(context, op.out.rows, op.out.cols, body, "embedding_forward");
      },
      op.table, op.out);
}

void run(Context& context, const ops::EmbeddingBackward& op) {
  op.check();
  if (op.dout.size() == 0) return;
  const SortedTokens sorted = sort_tokens(context, op.tokens, op.dtable.rows);
  with_rows(
      [&]<class D>(const Rows<D>& rows) {
        constexpr unsigned kThreads = 128;
        constexpr std::int64_t kColumns = kThreads * kGroup;
        const dim3 grid(static_cast<unsigned>(op.tokens.cols),
                        grid_size((op.dtable.cols + kColumns - 1) / kColumns, kGridYLimit));
        add_runs<<<grid, kThreads, 0, context.stream()>>>(
            op.tokens.cols, op.dtable.rows, sorted.keys, sorted.positions, rows, op.dtable.cols,
            rows_of<float>(op.dtable));
        check_launch("embedding_backward");
      },
      op.dout);
}

}  // namespace fp8lab::cuda
