// Elementary functions with one defined order of operations: the same bits on every backend.
//
// The FP32 functions use add, multiply, divide, square root, fused multiply-add and bit operations
// only, each rounded to nearest even with subnormals kept. They contain no branch, so loops over
// them vectorise; special values are merged with masks because a select would let the compiler move
// the arithmetic into a branch. Every NaN result is the canonical 0x7FFFFFFF unless stated. The
// FP64 functions serve tables built on the host; they use no fused operation.
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

inline constexpr float kLog2E = 0x1.715476p+0f;  ///< log2(e), nearest FP32
inline constexpr float kLn2 = 0x1.62E430p-1f;    ///< ln(2), nearest FP32

/// a * b + c rounded once, for processors without a fused instruction: the FP64 sum is rounded to
/// odd, which makes the second rounding, to FP32, exact (Boldo and Melquiond 2008, theorem 3).
FP8LAB_HD inline float fma_by_round_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);  // exact: 48 bits
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);  // exact (Knuth's two-sum)
  const std::uint64_t bits = double_bits(sum);
  const std::uint64_t error_bits = double_bits(error);
  // An inexact sum with an even last bit moves one step towards the exact value. The two tests,
  // error != 0 and sum finite, use shifts and additions, which every vector unit has for 64 bits.
  const std::uint64_t magnitude = error_bits << 1;
  const std::uint64_t inexact = (magnitude | (0u - magnitude)) >> 63;
  const std::uint64_t infinite = ((bits & 0x7FF0000000000000u) + 0x0010000000000000u) >> 63;
  const std::uint64_t step = inexact & ~infinite & ~bits & 1u;
  const std::uint64_t overshot = (bits ^ error_bits) >> 63;  // the magnitude was rounded up
  return static_cast<float>(bits_double(bits + step - ((step & overshot) << 1)));
}

/// a * b + c with one rounding to nearest even.
FP8LAB_HD inline float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__) || defined(__FP_FAST_FMAF) || defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return fma_by_round_to_odd(a, b, c);
#endif
}

/// Returns all ones if the condition holds, else zero.
FP8LAB_HD constexpr std::uint32_t mask_of(bool condition) {
  return 0u - static_cast<std::uint32_t>(condition);
}

/// Adding it to a number below 2^22 rounds that number to an integer, which
/// the last bits then hold.
inline constexpr float kF32ToInteger = 12582912.0f;  // 1.5 * 2^23

/// 2^f for |f| <= 1/2: near-minimax polynomial, relative error 2^-28.3.
FP8LAB_HD_INLINE float exp2_of_fraction(float f) {
  float p = 0x1.417A9Cp-13f;
  p = fused_multiply_add(p, f, 0x1.5F0948p-10f);
  p = fused_multiply_add(p, f, 0x1.3B2DD2p-7f);
  p = fused_multiply_add(p, f, 0x1.C6AF7Ap-5f);
  p = fused_multiply_add(p, f, 0x1.EBFBDCp-3f);
  p = fused_multiply_add(p, f, 0x1.62E430p-1f);
  return fused_multiply_add(p, f, 1.0f);
}

/// exp2 of a number; an arbitrary number for NaN.
FP8LAB_HD inline float exp2_of_number(float x) {
  const std::uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu;
  const std::uint32_t clamped = magnitude < 0x43180000u ? magnitude : 0x43180000u;  // 152
  const float bounded = bits_float(clamped | (float_bits(x) & 0x80000000u));
  const float shifted = bounded + kF32ToInteger;
  const float f = bounded - (shifted - kF32ToInteger);  // exact, |f| <= 1/2
  const float p = exp2_of_fraction(f);
  // Two factors, so that both are normal; only the last product can round.
  const std::int32_t n = static_cast<std::int32_t>(float_bits(shifted) - float_bits(kF32ToInteger));
  const std::int32_t half = n >> 1;
  const float scale_a = bits_float(static_cast<std::uint32_t>(half + 127) << 23);
  const float scale_b = bits_float(static_cast<std::uint32_t>(n - half + 127) << 23);
  return (p * scale_a) * scale_b;
}

/// exp2(x) with fewer operations for |x| <= kExp2Normal. The result is normal, so the integer part
/// of x can be added to the exponent. For other x the result is arbitrary.
inline constexpr float kExp2Normal = 125.0f;
FP8LAB_HD_INLINE float exp2_normal(float x) {
  const float shifted = x + kF32ToInteger;
  const float p = exp2_of_fraction(x - (shifted - kF32ToInteger));
  return bits_float(float_bits(p) + (float_bits(shifted) << 23));  // kF32ToInteger's bits cancel
}

/// 2^x. Error below 1 ulp over all x, subnormal results included (every FP32 value was compared
/// with FP64: at most 0.88; the other bounds likewise: log2 0.97, log 1.76, rsqrt 1.50); exact for
/// integer x. x >= 128 gives infinity, x <= -150 gives +0.
FP8LAB_HD inline float exp2(float x) {
  const std::uint32_t is_nan = mask_of((float_bits(x) & 0x7FFFFFFFu) > kF32Infinity);
  return bits_float(float_bits(exp2_of_number(x)) | (is_nan & kF32NaN));
}

/// log2(x). Error below 1 ulp for all positive x, subnormals included; exact for powers of two.
/// +-0 gives -infinity, +infinity gives +infinity, negative x gives NaN.
FP8LAB_HD inline float log2(float x) {
  constexpr std::uint32_t kSqrtHalf = 0x3F3504F3u;
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t subnormal = mask_of(bits < 0x00800000u);
  const std::uint32_t lifted = float_bits(x * 8388608.0f);  // 2^23
  const std::uint32_t normal = (lifted & subnormal) | (bits & ~subnormal);
  // x = 2^e * m with sqrt(1/2) <= m < sqrt(2).
  const std::int32_t e = static_cast<std::int32_t>(normal - kSqrtHalf) >> 23;
  const float m = bits_float(normal - (static_cast<std::uint32_t>(e) << 23));
  const float exponent = static_cast<float>(e - static_cast<std::int32_t>(subnormal & 23u));
  const float f = m - 1.0f;  // exact
  // log2(1 + f) = f * (log2(e) + f * p(f)), relative error 2^-27.7; log2(e) in two parts.
  float p = -0x1.C3A1B8p-4f;
  p = fused_multiply_add(p, f, 0x1.7F1FCAp-3f);
  p = fused_multiply_add(p, f, -0x1.87F2EEp-3f);
  p = fused_multiply_add(p, f, 0x1.A2CAAAp-3f);
  p = fused_multiply_add(p, f, -0x1.EAA2DCp-3f);
  p = fused_multiply_add(p, f, 0x1.277F42p-2f);
  p = fused_multiply_add(p, f, -0x1.715AFCp-2f);
  p = fused_multiply_add(p, f, 0x1.EC7094p-2f);
  p = fused_multiply_add(p, f, -0x1.715470p-1f);
  const float tail = f * fused_multiply_add(p, f, 0x1.4AE0C0p-26f);
  const float fraction = fused_multiply_add(f, 0x1.715476p+0f, tail);
  const std::uint32_t result = float_bits(exponent + fraction);
  const std::uint32_t is_zero = mask_of((bits << 1) == 0u);
  const std::uint32_t is_infinity = mask_of(bits == kF32Infinity);
  const std::uint32_t is_invalid = mask_of(bits > kF32Infinity) & ~is_zero;
  const std::uint32_t special =
      (is_zero & 0xFF800000u) | (is_infinity & kF32Infinity) | (is_invalid & kF32NaN);
  return bits_float((result & ~(is_zero | is_infinity | is_invalid)) | special);
}

/// Natural logarithm, log2(x) * ln 2 with ln 2 in two parts. Error below 2 ulp; special values as
/// log2.
FP8LAB_HD inline float log(float x) {
  const float base2 = log2(x);
  const float low = base2 * -0x1.05C610p-29f;
  const std::uint32_t result = float_bits(fused_multiply_add(base2, 0x1.62E430p-1f, low));
  // Infinities and NaN pass through: for them the sum above may be infinity minus infinity.
  const std::uint32_t special = mask_of((float_bits(base2) & 0x7FFFFFFFu) >= kF32Infinity);
  return bits_float((result & ~special) | (float_bits(base2) & special));
}

/// 1 / sqrt(x), both operations rounded to nearest even: error below 1.5 ulp. Negative x and NaN
/// give NaN, +-0 gives the infinity of its sign, +infinity gives +0.
FP8LAB_HD inline float rsqrt(float x) { return canonical_nan(1.0f / __builtin_sqrtf(x)); }

/// Logistic function 1 / (1 + 2^(-x * log2(e))), the product and each operation rounded. The error
/// grows with |x| for negative x through the rounded product: relative error below
/// (2 + |x|) * 2^-23 while the result is normal.
FP8LAB_HD inline float sigmoid(float x) { return 1.0f / (1.0f + exp2(x * -0x1.715476p+0f)); }
/// Returns the exponent of the power of two that sigmoid adds to 1.
FP8LAB_HD inline float sigmoid_exponent(float x) { return x * -0x1.715476p+0f; }
/// Returns the divisor of sigmoid for a number; an arbitrary number for NaN.
FP8LAB_HD inline float sigmoid_divisor(float x) {
  return 1.0f + exp2_of_number(sigmoid_exponent(x));
}

/// x * sigmoid(x), the product rounded. -infinity gives NaN (infinity times zero).
FP8LAB_HD inline float silu(float x) { return canonical_nan(x * sigmoid(x)); }

/// Returns the sum of value^k / k! for k = first, first + 2, ... <= last, with alternating signs:
/// the series of sine (first 1) and cosine (first 0).
constexpr double alternating_series(double value, int first, int last) {
  const double square = value * value;
  double sum = 1.0;
  for (int k = last; k > first; k -= 2) {
    sum = 1.0 - square / (static_cast<double>(k) * static_cast<double>(k - 1)) * sum;
  }
  return first == 1 ? value * sum : sum;
}

struct SinCos {
  double sin = 0.0;
  double cos = 1.0;
};

/// Sine and cosine of x radians for |x| <= 2^20, absolute error below 4e-16. pi/2 is subtracted in
/// three parts of 33 bits each (Cody and Waite), so that the multiples are exact. Host only.
constexpr SinCos sincos_f64(double x) {
  constexpr double kToInteger = 6755399441055744.0;  // 1.5 * 2^52
  const double n = (x * 0x1.45F306DC9C883p-1 + kToInteger) - kToInteger;
  double r = x - n * 0x1.921FB544p+0;
  r = r - n * 0x1.0B4611A6p-34;
  r = r - n * 0x1.3198A2E03707p-69;
  const double sine = alternating_series(r, 1, 19);
  const double cosine = alternating_series(r, 0, 20);
  // By quadrant: (sin, cos), (cos, -sin), (-sin, -cos), (-cos, sin). Without a branch, so that
  // loops vectorise.
  const auto quadrant = static_cast<std::int32_t>(n);
  const bool is_odd = (quadrant & 1) != 0;
  const double s = is_odd ? cosine : sine, c = is_odd ? sine : cosine;
  return {(quadrant & 2) != 0 ? -s : s, ((quadrant + 1) & 2) != 0 ? -c : c};
}

/// 2^(n + f) for integral n and |f| <= 1, relative error below 3e-16; the result must be a normal
/// FP64 number (n is clamped to [-1022, 1023]). Host only.
constexpr double scaled_exp2_f64(double n, double f) {
  const double t = f * 0x1.62E42FEFA39EFp-1;  // ln 2
  double sum = 1.0;
  for (int k = 20; k > 0; --k) sum = 1.0 + t / static_cast<double>(k) * sum;
  const double bounded = n < -1022.0 ? -1022.0 : n > 1023.0 ? 1023.0 : n;
  return sum *
         bits_double(static_cast<std::uint64_t>(static_cast<std::int64_t>(bounded) + 1023) << 52);
}

/// 2^x for |x| <= 1000, relative error below 1e-15. Host only.
constexpr double exp2_f64(double x) {
  constexpr double kToInteger = 6755399441055744.0;
  const double n = (x + kToInteger) - kToInteger;
  return scaled_exp2_f64(n, x - n);
}

/// x = 2^exponent * m with log2(m) = `fraction` in [-1/2, 1/2].
struct SplitLog2 {
  double exponent = 0.0;
  double fraction = 0.0;
};

/// log2 of a positive normal x in two parts; absolute error of the fraction below 2e-16.
FP8LAB_HD constexpr SplitLog2 split_log2_f64(double x) {
  constexpr std::uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDu;
  const std::uint64_t bits = double_bits(x);
  const std::int64_t e = static_cast<std::int64_t>(bits - kSqrtHalf) >> 52;
  const double m = bits_double(bits - (static_cast<std::uint64_t>(e) << 52));
  // log(m) = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.172.
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;
  double sum = 1.0 / 27.0;
  for (int k = 25; k > 0; k -= 2) sum = 1.0 / static_cast<double>(k) + square * sum;
  return {static_cast<double>(e), 2.0 * s * sum * 0x1.71547652B82FEp+0};
}

/// log2(x) of a positive normal x, error below 2 ulp or 2e-16.
FP8LAB_HD constexpr double log2_f64(double x) {
  const SplitLog2 log = split_log2_f64(x);
  return log.exponent + log.fraction;
}

/// x^y for positive normal x and |y * log2(x)| <= 1000, relative error below
/// 1e-15 * (1 + |y|). The exponent of x is multiplied in two exact halves. Host only.
constexpr double pow_f64(double x, double y) {
  constexpr double kToInteger = 6755399441055744.0;
  const SplitLog2 log = split_log2_f64(x);
  const double y_high = bits_double(double_bits(y) & 0xFFFFFFFFF8000000u);
  const double high = y_high * log.exponent;       // exact: 26 by 11 bits
  const double low = (y - y_high) * log.exponent;  // exact
  const double rest = y * log.fraction;
  const double n = ((high + (low + rest)) + kToInteger) - kToInteger;
  return scaled_exp2_f64(n, ((high - n) + low) + rest);
}

FP8LAB_NUMERICS_END
