// ops::EstimatorFactor: one thread for eight neighbours of a row.
//
//   source --> transform, if the operand has one: FP32 in the context's memory for tensors
//     d = d * numerics::estimator_factor(source / scale of the tile)
#include <algorithm>

#include "emulation/numerics/estimator.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/quantize/quantize_scales.hpp"
#include "kernels/quantize/quantize_tiles.cuh"
#include "kernels/runtime/operations.hpp"
#include "kernels/transform/transform.hpp"

namespace fp8lab::cuda {
namespace {

template <class T, class D>
struct MultiplyByFactor {
  Rows<T> source;
  Rows<D> d;
  numerics::Estimator estimator;
  numerics::FormatSpec format;
  std::int64_t tile_height, tile_width;
  const float* scales;  ///< nullptr: the operand has none
  std::int64_t scale_stride;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float values[kGroup], gradients[kGroup];
    source.load_group(row, col, count, values);
    d.load_group(row, col, count, gradients);
    const float* const of_row =
        scales != nullptr ? scales + quotient(row, tile_height) * scale_stride : nullptr;
    TileOfColumn at(col, tile_width);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i >= count) break;
      const float scale = of_row != nullptr ? of_row[at.tile] : 1.0f;
      at.next(tile_width);
      gradients[i] *= numerics::estimator_factor(estimator, format, values[i] / scale);
    }
    d.store_group(row, col, count, gradients);
  }
};

}  // namespace

void run(Context& context, const ops::EstimatorFactor& op) {
  op.check();
  const QuantSpec& spec = op.operand.spec;
  const TensorView values =
      spec.transform ? transformed(context, op.source, false, op.operand) : op.source;
  const TileGrid grid = tile_grid(values, spec.scale_tile(), false);
  with_rows(
      [&]<class T, class D>(const Rows<T>& source, const Rows<D>& d) {
        launch_groups(
            context, values.rows, values.cols,
            MultiplyByFactor<T, D>{source, d, spec.estimator, spec.format, grid.height, grid.width,
                                   spec.has_scale() ? op.operand.scales.row<float>(0) : nullptr,
                                   op.operand.scales.row_stride},
            "estimator_factor");
      },
      values, op.d);
}

}  // namespace fp8lab::cuda
