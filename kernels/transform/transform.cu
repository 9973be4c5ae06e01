#include "kernels/transform/transform.hpp"

#include <algorithm>
#include <string>

#include "emulation/base/error.hpp"
#include "emulation/numerics/hadamard.hpp"
#include "emulation/numerics/outliers.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/smoothing.hpp"
#include "emulation/ops/operand_checks.hpp"
#include "kernels/pointwise/rows.cuh"
#include "kernels/quantize/quantize_blocks.hpp"
#include "kernels/runtime/cuda_handles.hpp"
#include "kernels/runtime/operations.hpp"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMostShared = 227 << 10;  ///< bytes of a block
constexpr std::size_t kUsualShared = 64 << 10;  ///< where more vectors side by side fit in less
constexpr int kWidestStrip = 32;                ///< columns that are transformed side by side
constexpr std::int64_t kFewElements = 2048;     ///< of a row, for one block

/// The diagonal of signs.
struct Signs {
  SignSource source;
  int length;  ///< of the pattern
  std::uint64_t pattern[4];
  RandomKey key;

  __device__ float at(std::int64_t position) const {
    bool negative = false;
    if (source == SignSource::fixed) {
      const auto i = static_cast<int>(position % length);
      negative = (pattern[i / 64] >> (i % 64) & 1u) != 0;
    } else if (source == SignSource::drawn) {
      negative = (numerics::random_bits(key.seed, key.step_number(), key.rotation, 2,
                                        static_cast<std::uint64_t>(position)) &
                  1u) != 0;
    }
    return negative ? -1.0f : 1.0f;
  }
};

/// numerics::hadamard_multiply of `block` elements of K, and the signs around it.
struct Rotation {
  int block, order;
  const float* core;
  float factor;  ///< that makes it orthonormal
  bool back, signs_first;
  Signs signs;
};

/// What a block of threads transforms: `length` elements of K, whole Hadamard blocks, of `width`
/// neighbouring vectors. In shared memory element e of vector w lies at e * step + w * stride.
struct Piece {
  int length, width;
  bool transpose;  ///< K lies down the rows

  __host__ __device__ int step() const { return transpose ? width : 1; }
  __host__ __device__ int stride() const { return transpose ? 1 : length; }
  /// Calls body(element, vector) for `count` elements of each of `wide` vectors, those that lie
  /// side by side by neighbouring threads.
  template <class Body>
  __device__ void for_each(int count, int wide, const Body& body) const {
    for (int i = static_cast<int>(threadIdx.x); i < count * wide; i += kThreads) {
      if (transpose) {
        body(i / wide, i % wide);
      } else {
        body(i % count, i / count);
      }
    }
  }
};

/// The groups of `order` elements, each multiplied by the core or its transpose.
__device__ void multiply_core(const Rotation& rotation, const Piece& piece, int length, int wide,
                              const float* from, float* to) {
  const int order = rotation.order, step = piece.step();
  piece.for_each(length, wide, [&](int e, int w) {
    const int j = e % order;
    const float* const x = from + (e - j) * step + w * piece.stride();
    const float* const signs = rotation.core + (rotation.back ? j * order : j);
    const int next = rotation.back ? 1 : order;
    float sum = signs[0] * x[0];
    for (int i = 1; i < order; ++i) sum += signs[i * next] * x[i * step];
    to[e * step + w * piece.stride()] = sum;
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(Rows<T> source, Rows<float> result, std::int64_t k, std::int64_t vectors,
                  const __grid_constant__ Rotation rotation, const __grid_constant__ Piece piece) {
  extern __shared__ float shared[];
  const std::int64_t pieces = (k + piece.length - 1) / piece.length;
  const std::int64_t k0 = blockIdx.x % pieces * piece.length;
  const std::int64_t v0 = blockIdx.x / pieces * piece.width;
  const int length = static_cast<int>(min(k - k0, std::int64_t{piece.length}));
  const int wide = static_cast<int>(min(vectors - v0, std::int64_t{piece.width}));
  const auto at = [&](int e, int w) { return e * piece.step() + w * piece.stride(); };
  const auto row = [&](int e, int w) { return piece.transpose ? k0 + e : v0 + w; };
  const auto col = [&](int e, int w) { return piece.transpose ? v0 + w : k0 + e; };

  float* values = shared;
  piece.for_each(length, wide, [&](int e, int w) {
    const float x = source.load(row(e, w), col(e, w));
    values[at(e, w)] = rotation.signs_first ? x * rotation.signs.at(k0 + e) : x;
  });
  __syncthreads();
  if (rotation.order > 1) {
    float* const products = shared + piece.length * piece.width;
    multiply_core(rotation, piece, length, wide, values, products);
    values = products;
    __syncthreads();
  }
  for (int span = rotation.order; span < rotation.block; span *= 2) {
    piece.for_each(length / 2, wide, [&](int pair, int w) {
      const int low = pair / span * 2 * span + pair % span;
      const float a = values[at(low, w)], b = values[at(low + span, w)];
      values[at(low, w)] = a + b;
      values[at(low + span, w)] = a - b;
    });
    __syncthreads();
  }
  piece.for_each(length, wide, [&](int e, int w) {
    float x = values[at(e, w)] * rotation.factor;
    if (!rotation.signs_first) x *= rotation.signs.at(k0 + e);
    result.store(row(e, w), col(e, w), x);
  });
}

template <class T>
struct Rescale {
  Rows<T> source;
  Rows<float> result;
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
struct Clamp {
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

/// Elements of K that a block takes at a time, and vectors.
Piece piece_of(const TensorView& source, bool transpose, std::int64_t k, std::int64_t block,
               bool has_core) {
  const std::size_t one = static_cast<std::size_t>(block) * sizeof(float) * (has_core ? 2 : 1);
  if (one > kMostShared) {
    throw Error("transform: the cuda backend multiplies at most " +
                std::to_string(kMostShared / sizeof(float) / (has_core ? 2 : 1)) +
                " elements of K by this Hadamard matrix, asked for " + std::to_string(block));
  }
  if (!transpose) {
    return {static_cast<int>(block * std::clamp<std::int64_t>(kFewElements / block, 1, k / block)),
            1, false};
  }
  int width = kWidestStrip;
  while (width > 1 &&
         (one * static_cast<std::size_t>(width) > kUsualShared || width / 2 >= source.cols)) {
    width /= 2;
  }
  return {static_cast<int>(block), width, true};
}

/// result = the columns of `source`, or its rows unless `down`, by a Hadamard transform with the
/// signs of `key`, or by its inverse.
void rotate(Context& context, const TensorView& source, const TensorView& result, bool down,
            const Transform& transform, const RandomKey& key, bool back) {
  const std::int64_t k = down ? source.rows : source.cols;
  const std::int64_t block = transform.block == 0 ? k : transform.block;
  const int order = numerics::hadamard_core(block);
  const Piece piece = piece_of(source, down, k, block, order > 1);
  Rotation rotation{static_cast<int>(block),
                    order,
                    order > 1 ? context.hadamard_core(order) : nullptr,
                    numerics::hadamard_factor(block),
                    back,
                    (transform.side == SignSide::before) != back,
                    {transform.signs, transform.pattern_length, {}, key}};
  std::copy(transform.negative_signs.begin(), transform.negative_signs.end(),
            rotation.signs.pattern);
  const std::int64_t vectors = down ? source.cols : source.rows;
  const std::int64_t blocks =
      (k + piece.length - 1) / piece.length * ((vectors + piece.width - 1) / piece.width);
  const std::size_t shared = static_cast<std::size_t>(piece.length) *
                             static_cast<std::size_t>(piece.width) * sizeof(float) *
                             (order > 1 ? 2 : 1);
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        check(cudaFuncSetAttribute(rotate_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(kMostShared)),
              "cudaFuncSetAttribute");
        rotate_kernel<T><<<static_cast<unsigned>(blocks), kThreads, shared, context.stream()>>>(
            rows, rows_of<float>(result), k, vectors, rotation, piece);
      },
      source);
  check_launch("transform: hadamard");
}

/// result = the columns of `source`, or its rows unless `down`, in a space or out of it.
void move(Context& context, const TensorView& source, const TensorView& result, bool down,
          const Space& space, bool back) {
  check_space(space, down ? source.rows : source.cols);
  if (!space.transform.is_smoothing()) {
    return rotate(context, source, result, down, space.transform, space.key, back);
  }
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        launch_groups(context, source.rows, source.cols,
                      Rescale<T>{rows, rows_of<float>(result),
                                 static_cast<const float*>(space.channel_factors.data), down,
                                 space.is_right != back},
                      "transform: smoothing");
      },
      source);
}

void move_to_own(Context& context, const TensorView& source, const TensorView& result,
                 bool transpose, const QuantizedOperand& operand, bool back) {
  move(context, source, result, transpose != operand.spec.transform.left, operand.own_space(),
       back);
}

void clamp_values(Context& context, const TensorView& source, const TensorView& result,
                  const QuantizedOperand& operand) {
  check_transform(operand, operand.rows, operand.k);
  with_rows(
      [&]<class T>(const Rows<T>& rows) {
        launch_groups(context, source.rows, source.cols,
                      Clamp<T>{rows, rows_of<float>(result), operand.clamp_bounds.row<float>(0)},
                      "transform: clamp");
      },
      source);
}

/// Room for `shape` in FP32 in the context's memory for tensors, the same at each call.
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
  if (operand.spec.transform.is_clamp()) {
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
  const TensorView product = values_like(context, op.d);
  TensorView from = op.d;
  for (const QuantizedOperand* operand : {&op.a, &op.b}) {
    const Space space = operand->space_of_rows();
    if (!space) continue;
    move(context, from, product, operand == &op.a, space, true);
    from = product;
  }
  run(context, ops::Copy{product, op.d});
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
  smoothing_kernel<<<static_cast<unsigned>((k + kThreads - 1) / kThreads), kThreads, 0,
                     context.stream()>>>(k, op.transform.strength, op.transform.is_static, amaxes,
                                         amaxes + k, op.factors.row<float>(0));
  check_launch("smoothing_factors");
}

}  // namespace fp8lab::cuda
