// Test inputs in the manner of TestFloat: chosen exponents and significands, weighted random ones,
// and a different distribution in every tile, so that an implementation cannot pass on one kind of
// input alone. The seed determines everything, on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/philox.hpp"

namespace fp8lab {

/// The distribution of the elements of one tile.
enum class CaseKind : std::uint8_t {
  full_range,  ///< any finite code
  gaussian,    ///< about normally distributed, standard deviation 1
  narrow,      ///< a few neighbouring exponents
  sparse,      ///< mostly zeros of both signs
  cancelling,  ///< each element followed by its negative
  subnormal,   ///< subnormals and zeros
  near_max,    ///< the largest magnitudes, one sign per tile
  one_large,   ///< a few large elements among small ones
  distant,     ///< two clusters of exponents, so that products lie 12, 13 or 14 binades apart
  tiny,        ///< one sign; for bf16, products around 2^-140, below the exponent floor
  few_bits,    ///< at most one mantissa bit: ties and exact alignments
  special,     ///< full range with an occasional infinity or NaN
  zero,        ///< +0 and -0 only
};
inline constexpr int kCaseKinds = 13;
inline constexpr int kFiniteKinds = 11;  ///< the first kinds: no NaN, no all-zero tile

/// Where an FP32 value lies relative to the codes of the format it is going to be cast to.
enum class ValueKind : std::uint8_t {
  any_bits,       ///< any finite FP32 number
  gaussian,       ///< about normally distributed
  near_midpoint,  ///< halfway between two codes, or 1 to 2^20 FP32 units beside that
  near_code,      ///< a code, or one FP32 unit beside it
  subnormal,      ///< as large as the format's subnormals, down to values that round to zero
  near_max,       ///< around the largest finite code and the overflow limit
  one_large,      ///< one element 2^12 times the others
  cancelling,     ///< each element followed by its negative
  special,        ///< near_code with an occasional infinity or NaN
  zero,           ///< +0 and -0 only
};
inline constexpr int kValueKinds = 10;

/// Philox words in order, from counter 0.
class RandomWords {
 public:
  explicit RandomWords(std::uint64_t seed) : seed_(seed) {}
  std::uint32_t next() {
    if (used_ == 4) {
      block_ = numerics::random_block(seed_, 0, 0, 0, index_++);
      used_ = 0;
    }
    return block_.word[used_++];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t index_ = 0;
  numerics::PhiloxCounter block_;
  int used_ = 4;
};

class CaseGenerator {
 public:
  explicit CaseGenerator(std::uint64_t seed) : words_(seed) {}

  /// Draws codes of a (rows, k) matrix in tiles of `tile_rows` x `tile_k`. Each tile draws its
  /// kind; NaN and infinities only with `specials`.
  template <class Code>
  std::vector<Code> codes(const numerics::FormatSpec& format, std::int64_t rows, std::int64_t k,
                          std::int64_t tile_rows, std::int64_t tile_k, bool specials) {
    std::vector<Code> matrix(static_cast<std::size_t>(rows * k));
    for (std::int64_t r0 = 0; r0 < rows; r0 += tile_rows) {
      for (std::int64_t k0 = 0; k0 < k; k0 += tile_k) {
        auto kind = static_cast<CaseKind>(bits() % kCaseKinds);
        if (kind == CaseKind::special && !specials) kind = CaseKind::full_range;
        begin_tile(format, kind);
        for (std::int64_t r = r0; r < r0 + tile_rows && r < rows; ++r) {
          for (std::int64_t i = k0; i < k0 + tile_k && i < k; ++i) {
            matrix[static_cast<std::size_t>(r * k + i)] = static_cast<Code>(next_code());
          }
        }
      }
    }
    return matrix;
  }

  /// Draws one tile of a given kind.
  template <class Code>
  std::vector<Code> tile(const numerics::FormatSpec& format, CaseKind kind, std::int64_t count) {
    begin_tile(format, kind);
    std::vector<Code> values(static_cast<std::size_t>(count));
    for (Code& value : values) value = static_cast<Code>(next_code());
    return values;
  }

  /// Draws FP32 values to be cast to `format`, unscaled.
  std::vector<float> values(const numerics::FormatSpec& format, ValueKind kind,
                            std::int64_t count) {
    begin_values(format, kind);
    std::vector<float> drawn(static_cast<std::size_t>(count));
    for (float& value : drawn) value = next_value();
    return drawn;
  }

  /// Draws a (rows, cols) matrix to be quantized to `format` in tiles of `tile_rows` x
  /// `tile_cols`. Each tile draws its kind and a power of two that multiplies it. In every second
  /// tile the first element is the largest finite code, so that the scale is that power of two and
  /// midpoints remain midpoints.
  std::vector<float> matrix(const numerics::FormatSpec& format, std::int64_t rows,
                            std::int64_t cols, std::int64_t tile_rows, std::int64_t tile_cols,
                            bool specials) {
    std::vector<float> drawn(static_cast<std::size_t>(rows * cols));
    for (std::int64_t r0 = 0; r0 < rows; r0 += tile_rows) {
      for (std::int64_t c0 = 0; c0 < cols; c0 += tile_cols) {
        auto kind = static_cast<ValueKind>(bits() % kValueKinds);
        if (kind == ValueKind::special && !specials) kind = ValueKind::near_midpoint;
        begin_values(format, kind);
        const float factor = numerics::bits_float((107u + bits() % 40u) << 23);
        bool pinned = kind != ValueKind::zero && bits() % 2 == 0;
        for (std::int64_t r = r0; r < r0 + tile_rows && r < rows; ++r) {
          for (std::int64_t c = c0; c < c0 + tile_cols && c < cols; ++c) {
            const float value = pinned ? numerics::max_finite(format) : bounded(next_value());
            drawn[static_cast<std::size_t>(r * cols + c)] = value * factor;
            pinned = false;
          }
        }
      }
    }
    return drawn;
  }

  /// Draws FP32 accumulators: arbitrary finite bits, zeros of both signs,
  /// subnormals, values near 1.
  float accumulator() {
    const std::uint32_t any = bits();
    switch (bits() % 5) {
      case 0: return numerics::bits_float(any & 0x80000000u);
      case 1: return numerics::bits_float(any & 0x807FFFFFu);
      case 2: return numerics::bits_float((any & 0x80FFFFFFu) | 0x3F000000u);
      default: return numerics::bits_float(finite_f32(any));
    }
  }

  /// Draws scales: powers of two, ordinary values, and extremes that
  /// overflow or underflow products.
  float scale() {
    switch (bits() % 8) {
      case 0: return numerics::bits_float((100u + bits() % 56u) << 23);
      case 1: return numerics::bits_float(bits() % 0x7F800000u);
      default: return numerics::bits_float(0x3C000000u + bits() % 0x04000000u);
    }
  }

  std::uint32_t bits() { return words_.next(); }

 private:
  static constexpr std::uint32_t finite_f32(std::uint32_t any) {
    return (any & 0x7F800000u) == 0x7F800000u ? any ^ 0x40000000u : any;
  }

  /// Returns the sum of twelve uniform numbers, mean 0, variance 1.
  float normal() {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(bits() >> 8) * 0x1p-24f;
    return sum;
  }

  void begin_tile(const numerics::FormatSpec& format, CaseKind kind) {
    format_ = format;
    kind_ = kind;
    negative_ = bits() % 2 != 0;
    field_ = bits() % (1u << format.exponent_bits);
    pending_ = false;
  }

  std::uint32_t sign() { return bits() % 2 != 0 ? format_.sign_mask() : 0u; }
  std::uint32_t mantissa() { return bits() & ((1u << format_.mantissa_bits) - 1u); }
  std::uint32_t finite(std::uint32_t magnitude) const {
    magnitude &= format_.magnitude_mask();
    return magnitude > format_.max_finite_code() ? format_.max_finite_code() : magnitude;
  }

  /// Draws exponent fields f, f - 6 and f - 7: products of two such operands have exponents 0, 6,
  /// 7, 12, 13 and 14 below the largest.
  std::uint32_t distant() {
    const std::uint32_t lowest = format_.exponent_bits > 3 ? 8u : 1u;
    const std::uint32_t top = field_ < lowest ? lowest : field_;
    const std::uint32_t drop = bits() % 4 == 0 ? 0u : 6u + bits() % 2u;
    return sign() | finite(((top < drop ? 0u : top - drop) << format_.mantissa_bits) | mantissa());
  }

  std::uint32_t next_code() {
    const std::uint32_t code = drawn_code();
    // A zero with a minus sign is NaN in formats without -0.
    return kind_ != CaseKind::special && format_.is_nan(code) ? 0u : code;
  }

  std::uint32_t drawn_code() {
    const auto m = static_cast<unsigned>(format_.mantissa_bits);
    switch (kind_) {
      case CaseKind::full_range: return sign() | finite(bits());
      case CaseKind::gaussian: return numerics::encode(format_, numerics::float_bits(normal()));
      case CaseKind::narrow: return sign() | finite(((field_ + bits() % 3u) << m) | mantissa());
      case CaseKind::sparse: return bits() % 8 == 0 ? sign() | finite(bits()) : sign();
      case CaseKind::cancelling:
        pending_ = !pending_;
        if (pending_) return last_ = sign() | finite(bits());
        return last_ ^ format_.sign_mask();
      case CaseKind::subnormal: return sign() | mantissa();
      case CaseKind::near_max:
        return (negative_ ? format_.sign_mask() : 0u) | (format_.max_finite_code() - bits() % 3u);
      case CaseKind::one_large:
        return bits() % 16 == 0 ? sign() | format_.max_finite_code()
                                : sign() | finite((bits() % 6u) << m | mantissa());
      case CaseKind::distant: return distant();
      case CaseKind::tiny: {
        const auto lowest =
            static_cast<std::uint32_t>(format_.bias > 18 ? format_.bias / 2 - 9 : 0);
        return (negative_ ? format_.sign_mask() : 0u) |
               finite((lowest + bits() % 6u) << m | mantissa());
      }
      case CaseKind::few_bits:
        return sign() | finite((field_ + bits() % 4u) << m | (bits() % 2u) << (m - 1));
      case CaseKind::special:
        if (bits() % 40 != 0) return sign() | finite(bits());
        if (format_.max_finite_code() == format_.magnitude_mask()) {
          return format_.has_nan() ? format_.nan_code() : sign();
        }
        return sign() | (format_.max_finite_code() + 1u +
                         bits() % (format_.magnitude_mask() - format_.max_finite_code()));
      case CaseKind::zero: return sign();
    }
    return 0;
  }

  void begin_values(const numerics::FormatSpec& format, ValueKind kind) {
    format_ = format;
    value_kind_ = kind;
    pending_ = false;
    outlier_ = kind == ValueKind::one_large;
  }

  /// Returns the FP32 bits of a code with a random sign, moved `units` FP32 units away from zero.
  float beside(std::uint32_t code, std::int32_t units) {
    const std::uint32_t magnitude = numerics::decode_bits(format_, code);
    const auto moved = static_cast<std::int64_t>(magnitude) + units;
    const auto kept = static_cast<std::uint32_t>(moved < 0 ? 0 : moved);
    return numerics::bits_float(finite_f32(kept) | (bits() & 0x80000000u));
  }

  /// Returns the midpoint of a code and the next, or a value 2^j FP32 units beside it:
  /// double rounding fails here.
  float near_midpoint(std::uint32_t code) {
    const float low = numerics::decode(format_, code);
    const float high = numerics::decode(format_, code + 1);
    const std::uint32_t middle = numerics::float_bits(low + (high - low) * 0.5f);
    const auto offset = static_cast<std::int32_t>(1u << bits() % 21u);
    const std::int32_t sides[] = {0, offset, -offset};
    const auto moved = static_cast<std::int64_t>(middle) + sides[bits() % 3];
    const auto kept = static_cast<std::uint32_t>(moved < 0 ? 0 : moved);
    return numerics::bits_float(kept | (bits() & 0x80000000u));
  }

  std::uint32_t finite_code() { return bits() % (format_.max_finite_code() + 1u); }

  float bounded(float value) const {
    constexpr float kLargest = 0x1p+80f;  // leaves room for the factor of a tile
    return value > kLargest ? kLargest : value < -kLargest ? -kLargest : value;
  }

  float next_value() {
    switch (value_kind_) {
      case ValueKind::any_bits: return numerics::bits_float(finite_f32(bits()));
      case ValueKind::gaussian: return normal();
      case ValueKind::near_midpoint: return near_midpoint(bits() % format_.max_finite_code());
      case ValueKind::near_code:
        return beside(finite_code(), static_cast<std::int32_t>(bits() % 3u) - 1);
      case ValueKind::subnormal: {
        const std::uint32_t smallest = numerics::decode_bits(format_, format_.has_sign ? 1u : 0u);
        const auto span = static_cast<std::uint32_t>(format_.mantissa_bits + 3) << 23;
        const std::uint32_t low = smallest < (2u << 23) ? 0u : smallest - (2u << 23);
        return numerics::bits_float((low + bits() % span) | (bits() & 0x80000000u));
      }
      case ValueKind::near_max: {
        const auto units = static_cast<std::int32_t>(bits() % (2u << (23 - format_.mantissa_bits)));
        return beside(format_.max_finite_code(), bits() % 2 == 0 ? units : units % 4 - 2);
      }
      case ValueKind::one_large: {
        const float value = outlier_ ? normal() * 0x1p+12f : normal();
        outlier_ = false;
        return value;
      }
      case ValueKind::cancelling:
        pending_ = !pending_;
        return last_value_ =
                   pending_ ? near_midpoint(bits() % format_.max_finite_code()) : -last_value_;
      case ValueKind::special: {
        if (bits() % 16 != 0) return beside(finite_code(), 0);
        return numerics::bits_float((bits() & 0x80000000u) | numerics::kF32Infinity |
                                    (bits() % 2 == 0 ? 0u : 1u + bits() % 0x7FFFFFu));
      }
      case ValueKind::zero: return numerics::bits_float(bits() & 0x80000000u);
    }
    return 0.0f;
  }

  RandomWords words_;
  numerics::FormatSpec format_;
  CaseKind kind_ = CaseKind::zero;
  ValueKind value_kind_ = ValueKind::zero;
  bool negative_ = false;
  bool pending_ = false;
  bool outlier_ = false;
  std::uint32_t field_ = 0;
  std::uint32_t last_ = 0;
  float last_value_ = 0.0f;
};

}  // namespace fp8lab
