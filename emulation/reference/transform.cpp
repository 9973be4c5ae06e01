#include "emulation/reference/transform.hpp"

#include <algorithm>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/hadamard.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/smoothing.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/reference/clamp.hpp"

namespace fp8lab::reference {
namespace {

constexpr std::int64_t kStrip = 16;  ///< columns that are transformed side by side

/// One transform along a K of known length, forwards or back.
class Rotation {
 public:
  Rotation(const Hadamard& hadamard, std::int64_t k, const RandomKey& key, bool back)
      : k_(k),
        block_(hadamard.block == 0 ? k : hadamard.block),
        order_(numerics::hadamard_core(block_)),
        back_(back),
        signs_first_((hadamard.side == SignSide::before) != back) {
    core_.resize(static_cast<std::size_t>(order_ * order_));
    numerics::write_hadamard_core(static_cast<int>(order_), core_.data());
    if (hadamard.signs == SignSource::none) return;
    signs_.resize(static_cast<std::size_t>(k));
    for (std::int64_t i = 0; i < k; ++i) {
      const bool negative = hadamard.signs == SignSource::fixed
                                ? hadamard.is_negative(i)
                                : (numerics::random_bits(key.seed, key.step_number(), key.rotation,
                                                         2, static_cast<std::uint64_t>(i)) &
                                   1u) != 0;
      signs_[static_cast<std::size_t>(i)] = negative ? -1.0f : 1.0f;
    }
  }

  std::int64_t scratch_size(std::int64_t width) const { return order_ * width; }

  /// Transforms `width` vectors of K side by side: element i of vector w is values[i * width + w].
  void apply(float* values, std::int64_t width, float* scratch) const {
    if (signs_first_) flip(values, width);
    for (std::int64_t begin = 0; begin < k_; begin += block_) {
      numerics::hadamard_multiply(values + begin * width, block_, width, core_.data(), order_,
                                  back_, scratch);
    }
    if (!signs_first_) flip(values, width);
    for (std::int64_t e = 0; e < k_ * width; ++e) values[e] = numerics::canonical_nan(values[e]);
  }

 private:
  void flip(float* values, std::int64_t width) const {
    if (signs_.empty()) return;
    for (std::int64_t i = 0; i < k_; ++i) {
      const float sign = signs_[static_cast<std::size_t>(i)];
      for (std::int64_t w = 0; w < width; ++w) values[i * width + w] *= sign;
    }
  }

  std::int64_t k_, block_, order_;
  bool back_, signs_first_;
  std::vector<float> core_, signs_;
};

/// Rotates in place, each row by itself.
void rotate_rows(const TensorView& values, const Rotation& rotation) {
#pragma omp parallel if (values.rows > 1)
  {
    std::vector<float> scratch(static_cast<std::size_t>(rotation.scratch_size(1)));
#pragma omp for schedule(static)
    for (std::int64_t r = 0; r < values.rows; ++r) {
      rotation.apply(values.row<float>(r), 1, scratch.data());
    }
  }
}

/// Rotates in place, each column by itself, in strips of neighbouring columns.
void rotate_columns(const TensorView& values, const Rotation& rotation) {
  const std::int64_t strips = (values.cols + kStrip - 1) / kStrip;
#pragma omp parallel if (strips > 1)
  {
    std::vector<float> scratch(static_cast<std::size_t>(rotation.scratch_size(kStrip)));
    std::vector<float> strip(static_cast<std::size_t>(values.rows * kStrip));
#pragma omp for schedule(static)
    for (std::int64_t s = 0; s < strips; ++s) {
      const std::int64_t first = s * kStrip;
      const std::int64_t width = std::min(kStrip, values.cols - first);
      for (std::int64_t r = 0; r < values.rows; ++r) {
        std::copy_n(values.row<float>(r) + first, width, strip.data() + r * width);
      }
      rotation.apply(strip.data(), width, scratch.data());
      for (std::int64_t r = 0; r < values.rows; ++r) {
        std::copy_n(strip.data() + r * width, width, values.row<float>(r) + first);
      }
    }
  }
}

/// Applies a Hadamard transform with the signs of `key`, or its inverse, to the columns of
/// `values`, or to its rows unless `down`.
void rotate(const TensorView& values, bool down, const Hadamard& hadamard, const RandomKey& key,
            bool back) {
  const Rotation rotation(hadamard, down ? values.rows : values.cols, key, back);
  down ? rotate_columns(values, rotation) : rotate_rows(values, rotation);
}

/// Divides by the factors along K, or multiplies by them.
void rescale(const TensorView& values, bool transpose, const float* factors, bool multiply) {
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < values.rows; ++r) {
    float* const row = values.row<float>(r);
    for (std::int64_t c = 0; c < values.cols; ++c) {
      const float factor = factors[transpose ? r : c];
      row[c] = numerics::canonical_nan(multiply ? row[c] * factor : row[c] / factor);
    }
  }
}

void clamp_values(const TensorView& values, const numerics::ClampBounds& bounds) {
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < values.rows; ++r) {
    float* const row = values.row<float>(r);
    for (std::int64_t c = 0; c < values.cols; ++c) {
      row[c] = numerics::canonical_nan(numerics::clamped(bounds, row[c]));
    }
  }
}

/// Moves the columns of `values`, or its rows unless `down`, into a space or out of it.
void move(const TensorView& values, bool down, const Space& space, bool back) {
  check_space(space, down ? values.rows : values.cols);
  if (const auto* const hadamard = space.transform.as<Hadamard>()) {
    return rotate(values, down, *hadamard, space.key, back);
  }
  FP8LAB_ASSERT(space.transform.is<Smoothing>());
  rescale(values, down, space.channel_factors.row<float>(0), space.is_right != back);
}

void move_to_own(const TensorView& values, bool transpose, const QuantizedOperand& operand,
                 bool back) {
  move(values, transpose != operand.spec.transform.is_left(), operand.own_space(), back);
}

/// Returns the bits of the largest magnitude at each position along K.
std::vector<std::uint32_t> amax_along_k(const TensorView& source, bool transpose) {
  std::vector<std::uint32_t> amax(static_cast<std::size_t>(transpose ? source.rows : source.cols));
  for (std::int64_t r = 0; r < source.rows; ++r) {
    for (std::int64_t c = 0; c < source.cols; ++c) {
      const float value = source.dtype == DType::f32
                              ? source.row<float>(r)[c]
                              : numerics::from_bf16(source.row<std::uint16_t>(r)[c]);
      std::uint32_t& largest = amax[static_cast<std::size_t>(transpose ? r : c)];
      largest = std::max(largest, numerics::float_bits(value) & 0x7FFFFFFFu);
    }
  }
  return amax;
}

void widen(const TensorView& source, const TensorView& destination) {
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < source.rows; ++r) {
    float* const out = destination.row<float>(r);
    if (source.dtype == DType::f32) {
      std::copy_n(source.row<float>(r), source.cols, out);
      continue;
    }
    const std::uint16_t* const in = source.row<std::uint16_t>(r);
    for (std::int64_t c = 0; c < source.cols; ++c) out[c] = numerics::from_bf16(in[c]);
  }
}

}  // namespace

FloatMatrix transformed(const TensorView& source, bool transpose, const QuantizedOperand& operand) {
  FloatMatrix values(source.rows, source.cols);
  widen(source, values.view());
  if (operand.spec.transform.is<Clamp>()) {
    clamp_values(values.view(), clamp_bounds_of(operand));
  } else {
    move_to_own(values.view(), transpose, operand, false);
  }
  return values;
}

FloatMatrix transformed_whole(const TensorView& source, bool transpose,
                              const QuantizedOperand& operand) {
  FloatMatrix values(source.rows, source.cols);
  widen(source, values.view());
  if (operand.source_space) move(values.view(), !transpose, operand.source_space, false);
  if (operand.spec.transform.is_linear()) move_to_own(values.view(), transpose, operand, false);
  return values;
}

void undo_transform(const TensorView& values, bool transpose, const QuantizedOperand& operand) {
  if (operand.spec.transform.is_linear()) move_to_own(values, transpose, operand, true);
  if (operand.source_space) move(values, !transpose, operand.source_space, true);
}

FloatMatrix rotated_back(const ops::RotateBack& op) {
  op.check();
  FloatMatrix product(op.d.rows, op.d.cols);
  widen(op.d, product.view());
  for (const QuantizedOperand* operand : {&op.a, &op.b}) {
    if (const Space space = operand->space_of_rows()) {
      move(product.view(), operand == &op.a, space, true);
    }
  }
  return product;
}

void smoothing_factors(const ops::SmoothingFactors& op) {
  op.check();
  const std::vector<std::uint32_t> amax_a = amax_along_k(op.a, op.transpose_a);
  const std::vector<std::uint32_t> amax_b = amax_along_k(op.b, op.transpose_b);
  for (std::int64_t j = 0; j < op.factors.cols; ++j) {
    float& factor = op.factors.row<float>(0)[j];
    if (op.smoothing.is_static && factor != 0.0f) continue;
    const auto i = static_cast<std::size_t>(j);
    factor = numerics::smoothing_factor(op.smoothing.strength, numerics::bits_float(amax_a[i]),
                                        numerics::bits_float(amax_b[i]));
  }
}

}  // namespace fp8lab::reference
