// Test inputs in the manner of TestFloat: chosen exponents and significands, weighted random ones,
// and a different distribution in every tile, so that no single habit of an implementation passes.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"

namespace fp8lab::test {

/// How the codes of one tile are drawn.
enum class CaseKind : std::uint8_t {
  full_range,  ///< any finite code
  narrow,      ///< a few neighbouring exponents
  sparse,      ///< mostly zeros of both signs
  cancelling,  ///< each element followed by its negative
  subnormal,   ///< subnormals and zeros
  near_max,    ///< the largest magnitudes, one sign a tile
  one_large,   ///< one large element among small ones
  few_bits,    ///< at most one mantissa bit: ties and exact alignments
  special,     ///< full range with an occasional infinity or NaN
  zero,        ///< +0 and -0 only
};
inline constexpr int kCaseKinds = 10;
inline constexpr int kFiniteKinds = 8;  ///< the first kinds: no NaN, no all-zero tile

class CaseGenerator {
 public:
  explicit CaseGenerator(std::uint32_t seed) : engine_(seed) {}

  /// Codes of a (rows, k) matrix in tiles of `tile_rows` x `tile_k`; each tile draws its kind, NaN
  /// and infinities only when `specials`.
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
            matrix[static_cast<std::size_t>(r * k + i)] = static_cast<Code>(next());
          }
        }
      }
    }
    return matrix;
  }

  /// One tile of a given kind.
  template <class Code>
  std::vector<Code> tile(const numerics::FormatSpec& format, CaseKind kind, std::int64_t count) {
    begin_tile(format, kind);
    std::vector<Code> values(static_cast<std::size_t>(count));
    for (Code& value : values) value = static_cast<Code>(next());
    return values;
  }

  /// FP32 accumulators: arbitrary finite bits, zeros of both signs, subnormals, values near 1.
  float accumulator() {
    const std::uint32_t any = bits();
    switch (bits() % 5) {
      case 0: return numerics::bits_float(any & 0x80000000u);
      case 1: return numerics::bits_float(any & 0x807FFFFFu);
      case 2: return numerics::bits_float((any & 0x80FFFFFFu) | 0x3F000000u);
      default:
        return numerics::bits_float((any & 0x7F800000u) == 0x7F800000u ? any ^ 0x40000000u : any);
    }
  }

  /// Scales: powers of two, ordinary values, and extremes that overflow or underflow products.
  float scale() {
    switch (bits() % 8) {
      case 0: return numerics::bits_float((100u + bits() % 56u) << 23);
      case 1: return numerics::bits_float(bits() % 0x7F800000u);
      default: return numerics::bits_float(0x3C000000u + bits() % 0x04000000u);
    }
  }

  std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }

 private:
  void begin_tile(const numerics::FormatSpec& format, CaseKind kind) {
    format_ = format;
    kind_ = kind;
    negative_ = bits() % 2 != 0;
    const std::uint32_t fields = 1u << format.exponent_bits;
    field_ = bits() % fields;
    pending_ = false;
  }

  std::uint32_t sign() { return bits() % 2 != 0 ? format_.sign_mask() : 0u; }
  std::uint32_t mantissa() { return bits() & ((1u << format_.mantissa_bits) - 1u); }
  std::uint32_t finite(std::uint32_t magnitude) {
    magnitude &= format_.magnitude_mask();
    return magnitude > format_.max_finite_code() ? format_.max_finite_code() : magnitude;
  }

  std::uint32_t next() {
    const auto m = static_cast<unsigned>(format_.mantissa_bits);
    switch (kind_) {
      case CaseKind::full_range: return sign() | finite(bits());
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
      case CaseKind::few_bits:
        return sign() | finite((field_ + bits() % 4u) << m | (bits() % 2u) << (m - 1));
      case CaseKind::special:
        if (bits() % 40 != 0) return sign() | finite(bits());
        return format_.specials == numerics::SpecialValues::none
                   ? sign()
                   : sign() | (format_.max_finite_code() + 1u +
                               bits() % (format_.magnitude_mask() - format_.max_finite_code()));
      case CaseKind::zero: return sign();
    }
    return 0;
  }

  std::mt19937 engine_;
  numerics::FormatSpec format_;
  CaseKind kind_ = CaseKind::zero;
  bool negative_ = false;
  bool pending_ = false;
  std::uint32_t field_ = 0;
  std::uint32_t last_ = 0;
};

}  // namespace fp8lab::test
