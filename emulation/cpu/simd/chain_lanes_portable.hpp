// Vector operations of the emulated GEMM in the compiler's own 16-byte vectors, for any processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulation/cpu/simd/chain_codes.hpp"
#include "emulation/cpu/simd/wide_codes.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/host_device.hpp"

namespace fp8lab::cpu {
namespace FP8LAB_ISA {
namespace {

template <class T>
struct VectorOf {
  using type [[gnu::vector_size(16)]] = T;
};
template <class T>
using Vector = typename VectorOf<T>::type;

/// Common part of FP8 (bytes and floats) and BF16 (words and doubles). Lane j is column j. Products
/// are exact in Real, so a multiplication and an addition round once.
template <class CodesT, class RealT, class Bits, class SignedLane>
struct PortableLanes {
  using Codes = CodesT;
  using Lane = typename Codes::Lane;
  using Real = RealT;
  using Float = Vector<Real>;
  using Code = Vector<Lane>;
  static constexpr int kFloatLanes = 16 / sizeof(Real);
  static constexpr int kRows = 1;
  static constexpr int kSumRows = 1;
  static constexpr bool kFewRegisters = false;
  static constexpr int kColumns = 4 * kFloatLanes;

  static constexpr int position(int column) { return column; }

  static void arrange(const Lane* columns, std::byte* lanes) {
    std::memcpy(lanes, columns, kColumns * sizeof(Lane));
  }

  static Code all(int value) { return static_cast<Lane>(value) - Code{}; }
  static Code zero() { return Code{}; }
  static Code load(const std::byte* p) {
    Code codes;
    std::memcpy(&codes, p, sizeof codes);
    return codes;
  }
  static Code splat(std::uint32_t code) { return all(static_cast<Lane>(code)); }
  static Code subtract(Code x, Code y) { return x > y ? x - y : zero(); }
  static Code max(Code x, Code y) { return x > y ? x : y; }
  /// Raises codes other than zero to `least`.
  static Code at_least(Code code, int least) {
    return max(code, code != zero() ? all(least) : zero());
  }

  /// Returns count + 1 if the product is negative and has bits below the grid, lane by lane.
  static Code count(Code counted, Code low_a, Code low_b, Code limits) {
    using Signed = Vector<SignedLane>;
    const Code low = low_a + low_b;
    return counted -
           reinterpret_cast<Code>(reinterpret_cast<Signed>(limits) > reinterpret_cast<Signed>(low));
  }

  static Float load_values(const std::byte* p) {
    Float values;
    std::memcpy(&values, p, sizeof values);
    return values;
  }
  static Float splat_value(const Real* p) { return *p - Float{}; }
  static Float multiply_add(Float a, Float b, Float y) { return y + a * b; }

  static Float start(Float anchor, const float* c, int v) {
    Float magnitude, sign;
    for (int j = 0; j < kFloatLanes; ++j) {
      const float term = c[v * kFloatLanes + j];
      magnitude[j] = __builtin_fabsf(term);
      sign[j] = __builtin_copysignf(1.0f, term);
    }
    return anchor + ((anchor + magnitude) - anchor) * sign;
  }
  static Float sum(Float y, Float anchor, Code counted, int v) {
    Vector<Bits> bits = reinterpret_cast<Vector<Bits>>(y);
    for (int j = 0; j < kFloatLanes; ++j) bits[j] += counted[v * kFloatLanes + j];
    return reinterpret_cast<Float>(bits) - anchor;
  }
};

/// 16 columns: bytes of exponents, four vectors of 4 floats.
struct Fp8Lanes : PortableLanes<Fp8Codes, float, std::uint32_t, std::int8_t> {
  template <std::int64_t>
  using Counter = LaneCounter<Fp8Lanes>;
  static Code exponents(const float* c) {
    Code codes;
    for (int j = 0; j < kColumns; ++j) {
      codes[j] = static_cast<Lane>(numerics::float_bits(c[j]) >> 23);
    }
    return codes;
  }
  static Code limit(Code top) {
    const Code distance = subtract(top, all(Codes::kLimitOffset));
    const Code most = all(Codes::kLimitMax);
    return (distance < most ? distance : most) | all(0x80);
  }
  static Float anchor(Code top, int v) {
    Float anchors;
    for (int j = 0; j < kFloatLanes; ++j) {
      const std::uint32_t field = top[v * kFloatLanes + j] + std::uint32_t{Codes::kAnchorOffset};
      anchors[j] = numerics::bits_float((field < 255 ? field : 255) << 23 | 0x00400000u);
    }
    return anchors;
  }
  /// Computes c = y - anchor plus the counted units: at most 24 bits, so exact for either output.
  template <bool>
  static void finish(Float y, Float anchor, Code counted, float* c, int v) {
    const Float result = sum(y, anchor, counted, v);
    std::memcpy(c + v * kFloatLanes, &result, sizeof result);
  }
};

/// 8 columns of wide operands: 16-bit lanes, four vectors of 2 doubles. Lane j is column j.
struct WideLanes {
  using Float = Vector<double>;
  using Code = Vector<std::int16_t>;
  using Bytes = Vector<std::uint8_t>;
  static constexpr int kFloatLanes = 2;
  static constexpr int kColumns = 8;
  static constexpr int kRows = 1;
  static constexpr int kUnroll = 1;  ///< pairs of products

  static constexpr int position(int column) { return column; }

  template <class V>
  static V loaded(const void* p) {
    V values;
    std::memcpy(&values, p, sizeof values);
    return values;
  }
  static Code load(const std::byte* p) { return loaded<Code>(p); }
  static Code splat(std::uint32_t code) {
    return reinterpret_cast<Code>(code - Vector<std::uint32_t>{});
  }
  static Code bytes(int code) {
    return reinterpret_cast<Code>(static_cast<std::uint8_t>(code) - Bytes{});
  }
  static Code subtract_bytes(Code x, Code y) {
    const auto a = reinterpret_cast<Bytes>(x), b = reinterpret_cast<Bytes>(y);
    return reinterpret_cast<Code>(a > b ? a - b : Bytes{});
  }
  static Code max_bytes(Code x, Code y) {
    const auto a = reinterpret_cast<Bytes>(x), b = reinterpret_cast<Bytes>(y);
    return reinterpret_cast<Code>(a > b ? a : b);
  }
  static Code larger_byte(Code pairs) {
    const Code low = pairs & words(0xFF), high = pairs >> 8 & words(0xFF);
    return max(low, high);
  }

  static Code words(int code) { return static_cast<std::int16_t>(code) - Code{}; }
  static Code add(Code x, Code y) { return x + y; }
  static Code max(Code x, Code y) { return x > y ? x : y; }
  /// Raises fields of numbers other than zero to `least`.
  static Code at_least(Code fields, int least) {
    return max(fields, fields != Code{} ? words(least) : Code{});
  }
  static bool any_outside(Code fields, int least, int most) {
    const auto outside =
        reinterpret_cast<Vector<std::uint64_t>>((fields < words(least)) | (fields > words(most)));
    return (outside[0] | outside[1]) != 0;
  }
  static Code replace_above(Code fields, int most, int by) {
    return fields > words(most) ? words(by) : fields;
  }
  static Code differing(Code x, Code y) { return x ^ y; }
  static Code count_ones(Code code) {
    using Unsigned = Vector<std::uint16_t>;
    auto bits = reinterpret_cast<Unsigned>(code);
    bits = bits - (bits >> 1 & 0x5555);
    bits = (bits & 0x3333) + (bits >> 2 & 0x3333);
    bits = (bits + (bits >> 4)) & 0x0F0F;
    return reinterpret_cast<Code>((bits + (bits >> 8)) & 0x1F);
  }

  /// Returns the signs (bit 11) and exponent fields of 8 doubles.
  static Code fields_and_signs(const double* c) {
    Code codes;
    for (int j = 0; j < kColumns; ++j) {
      codes[j] = static_cast<std::int16_t>(numerics::double_bits(c[j]) >> 52);
    }
    return codes;
  }
  static Code fields_of(Code code) { return code & words(0x7FF); }
  static Code signs_of(Code code) { return code >> 11 & words(1); }

  static Float load_values(const double* p) { return loaded<Float>(p); }
  static Float splat_value(const double* p) { return *p - Float{}; }
  /// Products are exact, so a multiplication and an addition round once.
  static Float multiply_add(Float a, Float b, Float y) { return y + a * b; }
  static Float subtract(Float x, Float y) { return x - y; }
  static void store(double* p, Float x) { std::memcpy(p, &x, sizeof x); }

  /// Returns the upper words of anchors, 1.5 * 2^52 grid units, for the fields of common exponents.
  static Code anchor_words(Code fields) {
    return (fields << 4) + words(WideCodes::kAnchorOffset << 4 | 8);
  }
  static Float anchor(Code anchors, int v) { return Starts(anchors, Code{}).vector(v); }
  /// Anchors plus `units` grid units.
  class Starts {
   public:
    Starts(Code anchors, Code units) : anchors_(anchors), units_(units) {}
    Float vector(int v) const {
      Vector<std::uint64_t> bits;
      for (int j = 0; j < kFloatLanes; ++j) {
        const auto word = static_cast<std::uint16_t>(anchors_[v * kFloatLanes + j]);
        bits[j] =
            std::uint64_t{word} << 48 | static_cast<std::uint16_t>(units_[v * kFloatLanes + j]);
      }
      return reinterpret_cast<Float>(bits);
    }

   private:
    Code anchors_, units_;
  };

  /// Truncates toward zero to the 24 bits of a normal number of FP32.
  static Float cut_to_f32(Float x) {
    return reinterpret_cast<Float>(reinterpret_cast<Vector<std::uint64_t>>(x) &
                                   ~std::uint64_t{0x1FFFFFFF});
  }
  /// Converts to FP32: truncates (kCut), or rounds to odd for a second rounding to FP16.
  template <bool kCut>
  static void narrow(Float x, float* out) {
    for (int j = 0; j < kFloatLanes; ++j) {
      const float narrow = static_cast<float>(x[j]);
      const bool odd = !kCut && static_cast<double>(narrow) != x[j];
      out[j] =
          odd ? numerics::bits_float(numerics::float_bits(narrow) | 1u) : narrow + 0.0f;  // no -0
    }
  }
  static Float widen(const float* p) {
    return Float{static_cast<double>(p[0]), static_cast<double>(p[1])};
  }
};

/// One float at a time: fused multiply-adds without the instruction.
struct F32Lanes {
  using Element = float;
  using Vector = float;
  static constexpr int kLanes = 1;
  static constexpr int kRows = 1;
  static Vector load(const float* p) { return *p; }
  static Vector splat(float x) { return x; }
  static Vector fused(Vector a, Vector b, Vector y) { return __builtin_fmaf(a, b, y); }
  static void store(float* p, Vector x) { *p = x; }
};

/// 2 doubles for FP64 sums of products of FP32 values. The products are exact, so a multiplication
/// and an addition round as one fused operation does.
struct F64Lanes {
  using Element = double;
  using Vector [[gnu::vector_size(16)]] = double;
  static constexpr int kLanes = 2;
  static constexpr int kRows = 2;
  static Vector load(const double* p) { return Vector{p[0], p[1]}; }
  static Vector splat(double x) { return Vector{x, x}; }
  static Vector fused(Vector a, Vector b, Vector y) { return a * b + y; }
  static void store(double* p, Vector x) {
    p[0] = x[0];
    p[1] = x[1];
  }
};

/// Replaces FP32 numbers by the nearest FP16 ones, ties to even, in any rounding
/// mode. Replaces numbers too large for FP16 by `overflow` with their sign. Zeros
/// become +0; infinity and NaN stay.
struct F16Rounding {
  static constexpr int kLanes = 1;
  static void round(float* x, float overflow) {
    const std::uint32_t bits = numerics::float_bits(*x);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= numerics::kF32Infinity) return;
    const std::uint32_t code = numerics::encode(
        numerics::kFP16, magnitude, numerics::Rounding::nearest, numerics::Overflow::special);
    const float rounded =
        code < numerics::kFP16.infinity_code() ? numerics::decode(numerics::kFP16, code) : overflow;
    *x = code == 0 ? 0.0f : __builtin_copysignf(rounded, *x);
  }
};

}  // namespace
}  // namespace FP8LAB_ISA
}  // namespace fp8lab::cpu
