#include "kernels/transform/transform.hpp"

#include "emulation/base/error.hpp"
#include "emulation/numerics/outliers.hpp"
#include "emulation/numerics/smoothing.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/quantize/quantize_blocks.hpp"
#include "kernels/runtime/operations.hpp"
#include "kernels/transform/rotate.hpp"

namespace fp8lab::cuda {
namespace {

template <class T, class R>
struct Rescale {
  Rows<T> source;
  Rows<R> result;
  const float* factors;
  bool transpose, multiply;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float values[kGroup];
    source.load_group(row, col, count, values);
    for (int i = 0; i < kGroup; ++i) {
      if (i >= count) break;
      const float factor = factors[transpose ? row : col + i];
      values[i] = multiply ? values[i] * factor : values[i] / factor;
    }
    result.store_group(row, col, count, values);
  }
};

template <class T>
struct ClampGroup {
  Rows<T> source;
  Rows<float> result;
  const float* bounds;

  __device__ void operator()(std::int64_t row, std::int64_t col, int count) const {
    float values[kGroup];
    source.load_group(row, col, count, values);
    for (int i = 0; i < kGroup; ++i)
      values[i] = numerics::clamped({bounds[0], bounds[1]}, values[i]);
    result.store_group(row, col, count, values);
  }
};

/// Transforms the columns of `source`, or its rows unless `down`, into
/// `space`, or `back` out of it.
void move(Context& context, const TensorView& source, const TensorView& result, bool down,
          const Space& space, bool back) {
  check_space(space, down ? source.rows : source.cols);
  if (const auto* const hadamard = space.transform.as<Hadamard>()) {
    return rotate(context, source, result, down, *hadamard, space.key, back);
  }
  FP8LAB_ASSERT(space.transform.is<Smoothing>());
  with_rows(
      [&]<class T, class R>(const Rows<T>& rows, const Rows<R>& made) {
        launch_groups(
            context, source.rows, source.cols,
            Rescale<T, R>{rows, made, static_cast<const float*>(space.channel_factors.data), down,
                          space.is_right != back},
            "transform: smoothing");
      },
      source, result);
}

void move_to_own(Context& context, const TensorView& source, const TensorView& result,
                 bool transpose, const QuantizedOperand& operand, bool back) {
  move(context, source, result, transpose != operand.spec.transform.is_left(), operand.own_space(),
       back);
}

void clamp_values(Context& context, const TensorView& source, const TensorView& result,
                  const QuantizedOperand& operand) {
  check_transform(operand, operand.rows, operand.k);
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        launch_groups(
            context, source.rows, source.cols,
            ClampGroup<T>{rows, rows_of<float>(result), operand.clamp_bounds.row<float>(0)},
            "transform: clamp");
      },
      source);
}

/// Returns an FP32 tensor of the shape of `shape` in the context's tensor memory. Each
/// call returns the same memory.
TensorView values_like(Context& context, const TensorView& shape) {
  const auto count = static_cast<std::size_t>(shape.size());
  return {context.tensor_memory(count * sizeof(float)), DType::f32, shape.rows, shape.cols,
          shape.cols};
}

__global__ void smoothing_kernel(std::int64_t k, float strength, bool keep,
                                 const std::uint32_t* amax_a, const std::uint32_t* amax_b,
                                 float* factors) {
  const std::int64_t j = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= k || (keep && factors[j] != 0.0f)) return;
  factors[j] = numerics::smoothing_factor(strength, numerics::bits_float(amax_a[j]),
                                          numerics::bits_float(amax_b[j]));
}

}  // namespace

TensorView transformed(Context& context, const TensorView& source, bool transpose,
                       const QuantizedOperand& operand) {
  const TensorView result = values_like(context, source);
  if (operand.spec.transform.is<Clamp>()) {
    clamp_values(context, source, result, operand);
  } else {
    move_to_own(context, source, result, transpose, operand, false);
  }
  return result;
}

TensorView transformed_whole(Context& context, const TensorView& source, bool transpose,
                             const QuantizedOperand& operand) {
  if (!operand.source_space) return transformed(context, source, transpose, operand);
  const TensorView result = values_like(context, source);
  move(context, source, result, !transpose, operand.source_space, false);
  if (operand.spec.transform.is_linear()) {
    move_to_own(context, result, result, transpose, operand, false);
  }
  return result;
}

void undo_transform(Context& context, const TensorView& values, bool transpose,
                    const QuantizedOperand& operand) {
  if (operand.spec.transform.is_linear()) {
    move_to_own(context, values, values, transpose, operand, true);
  }
  if (operand.source_space) {
    move(context, values, values, !transpose, operand.source_space, true);
  }
}

void run(Context& context, const ops::RotateBack& op) {
  op.check();
  const Space of_a = op.a.space_of_rows(), of_b = op.b.space_of_rows();
  if (!of_a) return move(context, op.d, op.d, false, of_b, true);
  if (!of_b) return move(context, op.d, op.d, true, of_a, true);
  const TensorView product = values_like(context, op.d);
  move(context, op.d, product, true, of_a, true);
  move(context, product, op.d, false, of_b, true);
}

void run(Context& context, const ops::SmoothingFactors& op) {
  op.check();
  const std::int64_t k = op.factors.cols;
  const std::size_t bytes = static_cast<std::size_t>(k) * sizeof(std::uint32_t);
  auto* const amaxes = static_cast<std::uint32_t*>(context.workspace(2 * bytes));
  check(cudaMemsetAsync(amaxes, 0, 2 * bytes, context.stream()), "cudaMemsetAsync");
  const auto measure = [&](const TensorView& source, bool transpose, std::uint32_t* amax) {
    measure_lines(context, source, transpose ? amax : nullptr, transpose ? nullptr : amax);
  };
  measure(op.a, op.transpose_a, amaxes);
  measure(op.b, op.transpose_b, amaxes + k);
  constexpr unsigned kThreads = 256;
  smoothing_kernel<<<grid_size((k + kThreads - 1) / kThreads, k), kThreads, 0, context.stream()>>>(
      k, op.smoothing.strength, op.smoothing.is_static, amaxes, amaxes + k,
      op.factors.row<float>(0));
  check_launch("smoothing_factors");
}

}  // namespace fp8lab::cuda
