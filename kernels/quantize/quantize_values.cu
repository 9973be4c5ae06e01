#include "kernels/quantize/quantize_values.hpp"

#include "emulation/numerics/tile_codebook.hpp"
#include "emulation/ops/operand_checks.hpp"
#include "kernels/pointwise/rows.cuh"
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

/// Operands stored as values: passed through, or rounded to a wide format
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
      const auto index = static_cast<std::uint64_t>(row * cols + col);
      value = narrow<To>(numerics::decode(cast.format, cast.code(widen(x), index)));
    } else if constexpr (sizeof(From) == sizeof(To)) {
      value = x;
    } else {
      value = narrow<To>(widen(x));
    }
    store_at(codes, transpose, row, col, value);
  }
}

template <class T>
__global__ void dequantize_kernel(const __grid_constant__ Decoder decoder, std::int64_t rows,
                                  std::int64_t k, bool transpose, Rows<T> destination) {
  const std::int64_t col = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (col >= k) return;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    store_at(destination, transpose, row, col, narrow<T>(decoder(row, col)));
  }
}

constexpr int kCodebookThreads = 256;  ///< of a tile with a codebook

/// One block a tile, in the orientation of the operand (reference::quantize_codebooks).
template <class T, class Book>
__global__ void __launch_bounds__(kCodebookThreads)
    codebook_kernel(Rows<T> source, std::int64_t source_cols, bool transpose, std::int64_t rows,
                    std::int64_t k, std::int64_t height, std::int64_t width,
                    const __grid_constant__ Cast cast, std::uint8_t* codes, std::int64_t stride,
                    float* scales, std::int64_t scale_stride) {
  __shared__ std::uint32_t largest, smallest;
  const std::int64_t across = (k + width - 1) / width;
  const std::int64_t i = blockIdx.x / across, j = blockIdx.x % across;
  const std::int64_t row0 = i * height, col0 = j * width;
  const std::int64_t high = min(height, rows - row0), wide = min(width, k - col0);
  if (threadIdx.x == 0) {
    largest = 0;
    smallest = ~0u;
  }
  __syncthreads();
  const auto value = [&](std::int64_t r, std::int64_t c) {
    return transpose ? source.load(c, r) : source.load(r, c);
  };
  for (std::int64_t e = threadIdx.x; e < high * wide; e += blockDim.x) {
    const std::uint32_t size = float_bits(value(row0 + e / wide, col0 + e % wide)) & 0x7FFFFFFFu;
    atomicMax(&largest, size);
    if (size != 0) atomicMin(&smallest, size);
  }
  __syncthreads();
  const Book book = Book::of(cast.format, bits_float(largest), bits_float(smallest));
  if (threadIdx.x == 0) book.store(scales + i * scale_stride + j, across);
  for (std::int64_t e = threadIdx.x; e < high * wide; e += blockDim.x) {
    const std::int64_t r = row0 + e / wide, c = col0 + e % wide;
    std::uint32_t random = 0;
    if (cast.rounding == numerics::Rounding::stochastic) {
      const std::int64_t index = transpose ? c * source_cols + r : r * source_cols + c;
      random = numerics::random_bits(cast.key.seed, cast.key.step_number(), cast.key.tensor,
                                     cast.key.orientation, static_cast<std::uint64_t>(index));
    }
    codes[r * stride + c] = static_cast<std::uint8_t>(
        book.encode(cast.format, value(r, c), {cast.rounding, cast.overflow, random}));
  }
}

}  // namespace

void quantize_values(Context& context, const TensorView& source, bool transpose,
                     const RandomKey& key, QuantizedOperand& operand) {
  const QuantSpec& spec = operand.spec;
  const bool round =
      spec.is_cast() || (spec.rounding != numerics::Rounding::nearest &&
                         source.dtype == DType::f32 && operand.codes.dtype == DType::bf16);
  with_rows(
      [&](const auto& from, const auto& codes) {
        cast_kernel<<<element_blocks(source.rows, source.cols), 256, 0, context.stream()>>>(
            from, source.rows, source.cols, transpose, round, cast_of(spec, key), codes);
      },
      source, operand.codes);
  check_launch("quantize: cast");
}

void quantize_codebooks(Context& context, const TensorView& source, bool transpose,
                        const RandomKey& key, QuantizedOperand& operand) {
  const TileShape& tile = operand.spec.tile;
  const std::int64_t height = tile.rows == 0 ? operand.rows : tile.rows;
  const std::int64_t width = tile.cols == 0 ? operand.k : tile.cols;
  const std::int64_t tiles =
      operand.spec.tile_rows(operand.rows) * operand.spec.tile_cols(operand.k);
  const std::int64_t whole_warps = (height * width + 31) / 32 * 32;
  const auto threads = static_cast<unsigned>(std::min<std::int64_t>(whole_warps, kCodebookThreads));
  const auto launch = [&](const auto& rows, auto kernel) {
    kernel<<<static_cast<unsigned>(tiles), threads, 0, context.stream()>>>(
        rows, source.cols, transpose, operand.rows, operand.k, height, width,
        cast_of(operand.spec, key), static_cast<std::uint8_t*>(operand.codes.data),
        operand.codes.row_stride, static_cast<float*>(operand.scales.data),
        operand.scales.row_stride);
  };
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        if (operand.spec.transform.is_expansion()) {
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
      [&](const auto& rows) {
        dequantize_kernel<<<element_blocks(operand.rows, operand.k), 256, 0, context.stream()>>>(
            decoder_of(operand), operand.rows, operand.k, transpose, rows);
      },
      destination);
  check_launch("dequantize");
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
