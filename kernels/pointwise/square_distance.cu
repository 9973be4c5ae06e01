// ops::SquareDistance: one warp for 4096 elements, each lane one of numerics::chunk_sum.
#include <algorithm>

#include "kernels/pointwise/warp_rows.cuh"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kWarpRowThreads)
    square_distance(std::int64_t size, const T* x, const double* exact, double* sums) {
  const std::int64_t chunks = ops::SquareDistance::chunks(size);
  for (std::int64_t chunk = first_row(); chunk < chunks; chunk += row_step()) {
    double lane = 0.0;
    const std::int64_t end = chunk_end(chunk, size);
#pragma unroll 8
    for (std::int64_t i = chunk * numerics::kSumChunk + lane_id(); i < end; i += kWarpSize) {
      const double difference = static_cast<double>(widen(x[i])) - exact[i];
      lane += difference * difference;
    }
    for (int span = kWarpSize / 2; span > 0; span /= 2) {
      lane += __shfl_down_sync(kAllLanes, lane, span);
    }
    if (lane_id() == 0) sums[chunk] = ops::SquareDistance::stored(lane);
  }
}

}  // namespace

void run(Context& context, const ops::SquareDistance& op) {
  op.check();
  const std::int64_t size = op.x.size();
  if (size == 0) return;
  with_rows(
      [&](const auto& x) {
        square_distance<<<warp_row_blocks(context, ops::SquareDistance::chunks(size)),
                          kWarpRowThreads, 0, context.stream()>>>(
            size, x.data, static_cast<const double*>(op.exact.data),
            static_cast<double*>(op.sums.data));
        check_launch("square_distance");
      },
      op.x);
}

}  // namespace fp8lab::cuda
