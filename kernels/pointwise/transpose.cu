#include "emulation/base/error.hpp"
#include "kernels/pointwise/transpose.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kRowsAtOnce = 8;

/// Transposes one tile with each block, through shared memory, so that reads
/// and writes are contiguous.
template <class T>
__global__ void transpose_kernel(const T* source, std::int64_t source_stride, std::int64_t rows,
                                 std::int64_t cols, T* destination,
                                 std::int64_t destination_stride) {
  __shared__ T tile[kTile][kTile + 1];
  const std::int64_t tiles_across = (cols + kTile - 1) / kTile;
  const std::int64_t row0 = blockIdx.x / tiles_across * kTile;
  const std::int64_t col0 = blockIdx.x % tiles_across * kTile;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kRowsAtOnce) {
    if (row0 + y < rows && col0 + x < cols) {
      tile[y][x] = source[(row0 + y) * source_stride + col0 + x];
    }
  }
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.y); y < kTile; y += kRowsAtOnce) {
    if (col0 + y < cols && row0 + x < rows) {
      destination[(col0 + y) * destination_stride + row0 + x] = tile[x][y];
    }
  }
}

template <class T>
void launch(Context& context, const TensorView& source, const TensorView& destination) {
  const std::int64_t tiles =
      ((source.rows + kTile - 1) / kTile) * ((source.cols + kTile - 1) / kTile);
  transpose_kernel<T>
      <<<static_cast<unsigned>(tiles), dim3(kTile, kRowsAtOnce), 0, context.stream()>>>(
          static_cast<const T*>(source.data), source.row_stride, source.rows, source.cols,
          static_cast<T*>(destination.data), destination.row_stride);
  check_launch("transpose");
}

}  // namespace

void transpose(Context& context, const TensorView& source, const TensorView& destination) {
  FP8LAB_ASSERT(source.rows == destination.cols && source.cols == destination.rows);
  FP8LAB_ASSERT(source.dtype == destination.dtype);
  if (source.size() == 0) return;
  if (source.dtype == DType::bf16) return launch<std::uint16_t>(context, source, destination);
  FP8LAB_ASSERT(source.dtype == DType::f32);
  launch<float>(context, source, destination);
}

}  // namespace fp8lab::cuda
