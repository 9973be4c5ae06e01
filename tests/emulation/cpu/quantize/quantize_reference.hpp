// Quantization by the definition: two loops over tiles and elements, and the tensors to feed it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/backend.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"
#include "emulation/numerics/scaling.hpp"

namespace fp8lab::test {

/// A matrix with rows further apart than they are long, as bf16 or f32.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t padding = 3)
      : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + padding) {
    f32_.resize(static_cast<std::size_t>(rows * stride_), 0.0f);
    bf16_.resize(f32_.size(), 0);
  }

  /// Rounded to bf16 first if that is the type.
  void set(std::int64_t r, std::int64_t c, float value) {
    const auto at = static_cast<std::size_t>(r * stride_ + c);
    bf16_[at] = numerics::to_bf16(value);
    f32_[at] = dtype_ == DType::bf16 ? numerics::from_bf16(bf16_[at]) : value;
  }
  float at(std::int64_t r, std::int64_t c) const {
    return f32_[static_cast<std::size_t>(r * stride_ + c)];
  }
  TensorView view() {
    void* data = dtype_ == DType::bf16 ? static_cast<void*>(bf16_.data()) : f32_.data();
    return {data, dtype_, rows_, cols_, stride_};
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }

 private:
  DType dtype_;
  std::int64_t rows_, cols_, stride_;
  std::vector<float> f32_;
  std::vector<std::uint16_t> bf16_;
};

/// An operand and its memory.
struct Operand : QuantizedOperand {
  Operand(const QuantSpec& wanted, std::int64_t operand_rows, std::int64_t operand_k) {
    spec = wanted;
    rows = operand_rows;
    k = operand_k;
    const std::int64_t stride = k + 5;
    memory.resize(static_cast<std::size_t>(4 * rows * stride), 0xEE);
    codes = {memory.data(), spec.storage(), rows, k, stride};
    if (!spec.has_scale()) return;
    const std::int64_t high = spec.tile_rows(rows), wide = spec.scale_cols(k);
    scale_memory.resize(static_cast<std::size_t>(high * (wide + 1)), -1.0f);
    scales = {scale_memory.data(), DType::f32, high, wide, wide + 1};
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  std::uint32_t code(std::int64_t r, std::int64_t c) const { return codes.row<std::uint8_t>(r)[c]; }
  float scale(std::int64_t i, std::int64_t j) const { return scales.row<float>(i)[j]; }

  std::vector<std::uint8_t> memory;
  std::vector<float> scale_memory;
};

/// Values of both signs over 40 binades; one in 16 is zero, one in 4 a tie candidate.
inline void fill_wide(Matrix& matrix, std::uint64_t seed) {
  for (std::int64_t r = 0; r < matrix.rows(); ++r) {
    for (std::int64_t c = 0; c < matrix.cols(); ++c) {
      const auto index = static_cast<std::uint64_t>(r * matrix.cols() + c);
      const numerics::PhiloxCounter bits = numerics::random_block(seed, 0, 0, 0, index);
      std::uint32_t mantissa = bits.word[0] & 0x7FFFFFu;
      if (bits.word[1] % 4 == 0) mantissa &= 0x7C0000u;
      const std::uint32_t exponent = 107 + bits.word[2] % 40;
      const std::uint32_t sign = bits.word[3] & 0x80000000u;
      const bool zero = bits.word[1] / 4 % 16 == 0;
      matrix.set(r, c, numerics::bits_float(sign | (zero ? 0 : exponent << 23 | mantissa)));
    }
  }
}

/// What one element of the (rows, k) operand must be, with the scale of its tile.
struct ExpectedElement {
  std::uint32_t code;
  float scale;
};

/// Source element behind operand element (r, c).
inline float source_at(const Matrix& source, bool transpose, std::int64_t r, std::int64_t c) {
  return transpose ? source.at(c, r) : source.at(r, c);
}

/// Sum of four_over_six_error over a tile of the operand, added as the source lies in memory.
inline float tile_error(const Matrix& source, bool transpose, const QuantSpec& spec,
                        const numerics::TileScale& scale, std::int64_t r0, std::int64_t r1,
                        std::int64_t c0, std::int64_t c1) {
  float sum = 0.0f;
  for (std::int64_t i = transpose ? c0 : r0; i < (transpose ? c1 : r1); ++i) {
    float row = 0.0f;
    for (std::int64_t j = transpose ? r0 : c0; j < (transpose ? r1 : c1); ++j) {
      row += numerics::four_over_six_error(spec.scale.four_over_six, spec.format, scale,
                                           source.at(i, j));
    }
    sum += row;
  }
  return sum;
}

/// What stands for the amax of a tile of the operand where the rule asks for deviations: sums of
/// integers of 20 bits below its exponent, without numerics::TileDeviation.
inline float tile_deviation(const Matrix& source, bool transpose, float deviations, float amax,
                            std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
  if (amax == 0.0f || !std::isfinite(amax)) return amax;
  const int exponent = std::ilogb(amax);
  std::int64_t sum = 0, squares = 0;
  for (std::int64_t r = r0; r < r1; ++r) {
    for (std::int64_t c = c0; c < c1; ++c) {
      const double value = source_at(source, transpose, r, c);
      const auto v = static_cast<std::int64_t>(std::round(std::ldexp(value, 20 - exponent)));
      sum += v;
      squares += v * v;
    }
  }
  const std::int64_t n = (r1 - r0) * (c1 - c0), variance = n * squares - sum * sum;
  if (variance == 0) return amax;
  const float root = std::sqrt(static_cast<float>(variance));
  const float product = deviations * root;
  const float scaled = std::ldexp(product / static_cast<float>(n), exponent - 20);
  return std::min(scaled, std::numeric_limits<float>::max());
}

/// Largest magnitude of the tensor.
inline float amax_of(const Matrix& source) {
  std::uint32_t amax = 0;
  for (std::int64_t r = 0; r < source.rows(); ++r) {
    for (std::int64_t c = 0; c < source.cols(); ++c) {
      const std::uint32_t magnitude = numerics::float_bits(source.at(r, c)) & 0x7FFFFFFFu;
      amax = magnitude > amax ? magnitude : amax;
    }
  }
  return numerics::bits_float(amax);
}

/// Largest magnitude of row `r` of the operand.
inline float amax_of_row(const Matrix& source, bool transpose, std::int64_t r) {
  std::uint32_t amax = 0;
  for (std::int64_t c = 0; c < (transpose ? source.rows() : source.cols()); ++c) {
    amax = std::max(amax, numerics::float_bits(source_at(source, transpose, r, c)) & 0x7FFFFFFFu);
  }
  return numerics::bits_float(amax);
}

/// A magnitude in steps of the grid of a floating or integer format, in double precision.
inline double steps_of(const numerics::FormatSpec& format, double magnitude, double& step) {
  const int exponent = magnitude == 0.0 ? format.min_exponent() : std::ilogb(magnitude);
  step = std::ldexp(1.0, std::max(exponent, format.min_exponent()) - format.mantissa_bits);
  return magnitude / step;
}

/// The value rounded first to `via`, to nearest even with overflow to infinity, and then, with
/// `count` random bits, to a number of the grid of `format`, without the codecs. Infinity and NaN
/// stay.
inline float via_value(const numerics::FormatSpec& via, float value) {
  double step = 0.0;
  if (via == numerics::kFP32 || !std::isfinite(value)) return value;
  const double steps = steps_of(via, std::abs(static_cast<double>(value)), step);
  const double rounded = std::nearbyint(steps) * step;
  const double largest = numerics::max_finite(via);
  const double magnitude = rounded > largest ? std::numeric_limits<double>::infinity() : rounded;
  return static_cast<float>(std::copysign(magnitude, static_cast<double>(value)));
}
inline float few_bits_value(const numerics::FormatSpec& format, float value, std::uint32_t random,
                            int count) {
  double step = 0.0;
  if (!std::isfinite(value)) return value;
  const double steps = steps_of(format, std::abs(static_cast<double>(value)), step);
  const double whole = std::floor(steps);
  // 32 bits at most: a probability is a multiple of 2^-32 rounded down, like the bits of a word.
  const double weight = std::floor(std::ldexp(steps - whole, count));
  const double draw = std::fmod(static_cast<double>(random), std::ldexp(1.0, count));
  const bool is_up = draw + weight >= std::ldexp(1.0, count);
  return static_cast<float>(
      std::copysign((whole + (is_up ? 1.0 : 0.0)) * step, static_cast<double>(value)));
}

/// The code of a scaled value by the definition of a cast.
inline std::uint32_t expected_code(const QuantSpec& spec, float value, std::uint32_t random) {
  const float first = via_value(spec.via, value);
  if (spec.random_bits == 0) {
    return numerics::encode(spec.format, numerics::float_bits(first), spec.rounding, spec.overflow,
                            random);
  }
  const float rounded = few_bits_value(spec.format, first, random, spec.random_bits);
  return numerics::encode(spec.format, numerics::float_bits(rounded), numerics::Rounding::nearest,
                          spec.overflow);
}

/// current and none scale sources, in the orientation of the operand.
inline std::vector<ExpectedElement> reference(const Matrix& source, bool transpose,
                                              const QuantSpec& spec, const RandomKey& key) {
  const std::int64_t rows = transpose ? source.cols() : source.rows();
  const std::int64_t k = transpose ? source.rows() : source.cols();
  const std::int64_t height = spec.tile.rows == 0 ? rows : spec.tile.rows;
  const std::int64_t width = spec.tile.cols == 0 ? k : spec.tile.cols;
  std::vector<ExpectedElement> expected(static_cast<std::size_t>(rows * k));
  for (std::int64_t r0 = 0; r0 < rows; r0 += height) {
    for (std::int64_t c0 = 0; c0 < k; c0 += width) {
      const std::int64_t r1 = r0 + height < rows ? r0 + height : rows;
      const std::int64_t c1 = c0 + width < k ? c0 + width : k;
      std::uint32_t amax = 0;
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          const std::uint32_t magnitude =
              numerics::float_bits(source_at(source, transpose, r, c)) & 0x7FFFFFFFu;
          amax = magnitude > amax ? magnitude : amax;
        }
      }
      numerics::TileScale scale;
      if (spec.has_scale() && spec.scale.format == numerics::ScaleFormat::nv_two_level) {
        const bool by_row = spec.scale.outer == numerics::OuterScale::row;
        const float factor = numerics::nv_tensor_factor(
            spec.scale, spec.format, by_row ? amax_of_row(source, transpose, r0) : amax_of(source));
        const float tile_amax = numerics::bits_float(amax);
        scale = numerics::nv_tile_scale(spec.format, factor, tile_amax);
        if (spec.scale.four_over_six != numerics::FourOverSix::none) {
          const auto large = numerics::nv_tile_scale(spec.format, factor, tile_amax, true);
          const float usual_error = tile_error(source, transpose, spec, scale, r0, r1, c0, c1);
          const float large_error = tile_error(source, transpose, spec, large, r0, r1, c0, c1);
          if (large_error < usual_error) scale = large;
        }
      } else if (spec.has_scale()) {
        float statistic = numerics::bits_float(amax);
        if (spec.scale.deviations != 0.0f) {
          statistic =
              tile_deviation(source, transpose, spec.scale.deviations, statistic, r0, r1, c0, c1);
        }
        scale = numerics::tile_scale(spec.scale, spec.format, statistic);
      }
      for (std::int64_t r = r0; r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          const std::int64_t index = transpose ? c * source.cols() + r : r * source.cols() + c;
          const std::uint32_t random =
              numerics::random_bits(key.seed, key.step_number(), key.tensor, key.orientation,
                                    static_cast<std::uint64_t>(index));
          const float value = numerics::scaled_value(scale, source_at(source, transpose, r, c));
          expected[static_cast<std::size_t>(r * k + c)] = {expected_code(spec, value, random),
                                                           scale.decode};
        }
      }
    }
  }
  return expected;
}

}  // namespace fp8lab::test
