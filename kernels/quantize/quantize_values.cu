#include "kernels/quantize/quantize_values.hpp"

#include <bit>

#include "emulation/numerics/tile_codebook.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/pointwise/tree_sum.cuh"
#include "kernels/quantize/operand_decoder.cuh"
#include "kernels/quantize/quantize_tiles.cuh"
#include "kernels/runtime/operations.hpp"
#include "kernels/transform/transform.hpp"

namespace fp8lab::cuda {
namespace {

using numerics::bits_float;
using numerics::float_bits;

template <class T>
__device__ void store_at(const Rows<T>& destination, bool transpose, std::int64_t row,
                         std::int64_t col, T value) {
  *(transpose ? destination.at(col, row) : destination.at(row, col)) = value;
}

/// Writes operands stored as values: unchanged, or rounded to a wide format
/// (reference::cast_operand).
template <class From, class To>
__global__ void cast_kernel(Rows<From> source, std::int64_t rows, std::int64_t cols, bool transpose,
                            bool round, const __grid_constant__ Cast cast, Rows<To> codes) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const From x = *source.at(row, col);
    To value;
    if (round) {
      RandomWords random(cast, static_cast<std::uint64_t>(row * cols + col));
      value = narrow<To>(numerics::decode(cast.element.format, cast.code(widen(x), random.next())));
    } else if constexpr (sizeof(From) == sizeof(To)) {
      value = x;
    } else {
      value = narrow<To>(widen(x));
    }
    store_at(codes, transpose, row, col, value);
  }
}

/// Dequantizes operands whose codes are not in groups, or into the other orientation.
template <class T>
__global__ void dequantize_kernel(const __grid_constant__ Decoder decoder, std::int64_t rows,
                                  std::int64_t k, bool transpose, Rows<T> destination) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= k) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    store_at(destination, transpose, row, col, narrow<T>(decoder(row, col)));
  }
}

template <class T, bool kE4M3>
struct DequantizeGroup {
  Decoder decoder;
  Rows<T> destination;

  __device__ void operator()(std::int64_t row, std::int64_t col, int) const {
    float values[kGroup];
    decoder.decode_group<kE4M3>(row, col, values);
    destination.store_group(row, col, kGroup, values);
  }
};

constexpr int kCodebookThreads = 256;
constexpr std::int64_t kWarpTile = 1024;  ///< largest tile that one warp handles

/// Assignment of a tile's elements to threads: `across`, a power of two, neighbouring threads
/// along each row of the tile.
struct TileTeam {
  int threads;  ///< for one tile: a warp, or the whole block
  int across_shift;

  __device__ int tiles_of_block() const { return kCodebookThreads / threads; }
  /// Calls body(row, col) for each element of the tile that belongs to the calling thread.
  template <class Body>
  __device__ void for_each(std::int64_t high, std::int64_t wide, const Body& body) const {
    const int thread = static_cast<int>(threadIdx.x) % threads;
    const int down = threads >> across_shift, across = 1 << across_shift;
    for (std::int64_t r = thread >> across_shift; r < high; r += down) {
      for (std::int64_t c = thread & (across - 1); c < wide; c += across) body(r, c);
    }
  }
};

/// Returns the code of one element. An expanded tile changes the value before the ordinary cast.
__device__ std::uint32_t code_in(const numerics::ExpandedTile& book, const Cast& cast, float x,
                                 std::uint32_t random) {
  return cast.code(numerics::expand(book.group, x), random);
}
__device__ std::uint32_t code_in(const numerics::LogarithmTile& book, const Cast& cast, float x,
                                 std::uint32_t random) {
  return book.encode(cast.element, x, random);
}

/// Quantizes a tile with a team of threads, in the orientation of the operand
/// (reference::quantize_codebooks). Every thread computes the tile's codebook itself. Neighbouring
/// warps take tiles that are neighbours in the source.
template <class T, class Book>
__global__ void __launch_bounds__(kCodebookThreads)
    codebook_kernel(Rows<T> source, std::int64_t source_cols, bool transpose, std::int64_t rows,
                    std::int64_t k, std::int64_t height, std::int64_t width, TileTeam team,
                    const __grid_constant__ Cast cast, std::uint8_t* codes, std::int64_t stride,
                    float* scales, std::int64_t scale_stride) {
  __shared__ std::uint32_t largest, smallest;
  const bool whole_block = team.threads == kCodebookThreads;
  const std::int64_t across = (k + width - 1) / width, down = (rows + height - 1) / height;
  const std::int64_t tile = std::int64_t{blockIdx.x} * team.tiles_of_block() +
                            static_cast<int>(threadIdx.x) / team.threads;
  if (tile >= across * down) return;  // uniform in a warp
  const std::int64_t i = transpose ? tile % down : tile / across;
  const std::int64_t j = transpose ? tile / down : tile % across;
  const std::int64_t row0 = i * height, col0 = j * width;
  const std::int64_t high = min(height, rows - row0), wide = min(width, k - col0);
  const auto value = [&](std::int64_t r, std::int64_t c) {
    return transpose ? source.load(col0 + c, row0 + r) : source.load(row0 + r, col0 + c);
  };
  std::uint32_t above = 0, below = ~0u;
  team.for_each(high, wide, [&](std::int64_t r, std::int64_t c) {
    const std::uint32_t size = float_bits(value(r, c)) & 0x7FFFFFFFu;
    above = max(above, size);
    if (size != 0) below = min(below, size);
  });
  above = __reduce_max_sync(kAllLanes, above);
  below = __reduce_min_sync(kAllLanes, below);
  if (whole_block) {
    if (threadIdx.x == 0) {
      largest = 0;
      smallest = ~0u;
    }
    __syncthreads();
    if (lane_id() == 0) {
      atomicMax(&largest, above);
      atomicMin(&smallest, below);
    }
    __syncthreads();
    above = largest;
    below = smallest;
  }
  const Book book = Book::of(cast.element.format, bits_float(above), bits_float(below));
  if (threadIdx.x % team.threads == 0) book.store(scales + i * scale_stride + j, across);
  team.for_each(high, wide, [&](std::int64_t r, std::int64_t c) {
    const std::int64_t row = row0 + r, col = col0 + c;
    RandomWords random(cast, static_cast<std::uint64_t>(transpose ? col * source_cols + row
                                                                  : row * source_cols + col));
    codes[row * stride + col] =
        static_cast<std::uint8_t>(code_in(book, cast, value(r, c), random.next()));
  });
}

}  // namespace

void quantize_values(Context& context, const TensorView& source, bool transpose,
                     const QuantizedOperand& operand) {
  const QuantSpec& spec = operand.spec;
  const bool round =
      spec.is_cast() || (spec.rounding != numerics::Rounding::nearest &&
                         source.dtype == DType::f32 && operand.codes.dtype == DType::bf16);
  with_rows(
      [&](const auto& from, const auto& codes) {
        cast_kernel<<<element_blocks(source.rows, source.cols), 256, 0, context.stream()>>>(
            from, source.rows, source.cols, transpose, round, cast_of(spec, operand.key), codes);
      },
      source, operand.codes);
  check_launch("quantize: cast");
}

void quantize_codebooks(Context& context, const TensorView& source, bool transpose,
                        const QuantizedOperand& operand) {
  const TileShape& tile = operand.spec.tile;
  const std::int64_t height = tile.rows == 0 ? operand.rows : tile.rows;
  const std::int64_t width = tile.cols == 0 ? operand.k : tile.cols;
  const std::int64_t tiles =
      operand.spec.tile_rows(operand.rows) * operand.spec.tile_cols(operand.k);
  const bool by_warp = height <= kWarpTile && height * width <= kWarpTile;
  const int threads = by_warp ? kWarpSize : kCodebookThreads;
  const auto widest = static_cast<unsigned>(std::min<std::int64_t>(width, threads));
  const TileTeam team{threads, static_cast<int>(std::bit_width(widest - 1))};
  const std::int64_t of_block = kCodebookThreads / threads;
  const auto blocks = static_cast<unsigned>((tiles + of_block - 1) / of_block);
  const auto launch = [&](const auto& rows, auto kernel) {
    kernel<<<blocks, kCodebookThreads, 0, context.stream()>>>(
        rows, source.cols, transpose, operand.rows, operand.k, height, width, team,
        cast_of(operand.spec, operand.key), static_cast<std::uint8_t*>(operand.codes.data),
        operand.codes.row_stride, static_cast<float*>(operand.scales.data),
        operand.scales.row_stride);
  };
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        if (operand.spec.transform.is<RangeExpansion>()) {
          launch(rows, codebook_kernel<T, numerics::ExpandedTile>);
        } else {
          launch(rows, codebook_kernel<T, numerics::LogarithmTile>);
        }
      },
      source);
  check_launch("quantize: codebooks");
}

void decode_operand(Context& context, const QuantizedOperand& operand, bool transpose,
                    const TensorView& destination) {
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        const Decoder decoder = decoder_of(operand);
        const auto by_groups = [&](const auto& body) {
          launch_groups(context, operand.rows, operand.k, body, "dequantize");
        };
        if (transpose || !has_code_groups(operand)) {
          dequantize_kernel<<<element_blocks(operand.rows, operand.k), 256, 0, context.stream()>>>(
              decoder, operand.rows, operand.k, transpose, rows);
          check_launch("dequantize");
        } else if (operand.spec.format == numerics::kE4M3) {
          by_groups(DequantizeGroup<T, true>{decoder, rows});
        } else {
          by_groups(DequantizeGroup<T, false>{decoder, rows});
        }
      },
      destination);
}

void run(Context& context, const ops::Dequantize& op) {
  op.check();
  if (op.destination.size() == 0) return;
  if (!op.leaves_space()) return decode_operand(context, op.operand, op.transpose, op.destination);
  const auto count = static_cast<std::size_t>(op.destination.size());
  const TensorView values{context.tensor_memory(count * sizeof(float)), DType::f32,
                          op.destination.rows, op.destination.cols, op.destination.cols};
  decode_operand(context, op.operand, op.transpose, values);
  undo_transform(context, values, op.transpose, op.operand);
  run(context, ops::Copy{values, op.destination});
}

}  // namespace fp8lab::cuda
