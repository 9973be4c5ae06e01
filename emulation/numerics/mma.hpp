// The fused dot-product group of a tensor core: scalar reference
// (specification.md, "Tensor cores").
#pragma once

#include <cstdint>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// The result of a group, and the format of its accumulator operand.
enum class OutputKind : std::uint8_t {
  f32_truncated,  ///< FP32, mantissa truncated toward zero to `output_mantissa_bits`
  f16_nearest,    ///< FP16, round to nearest even
};

/// Returns the format of the accumulator operand and of the result.
FP8LAB_HD constexpr FormatSpec accumulator_format(OutputKind output) {
  if (output == OutputKind::f16_nearest) return kFP16;
  return kFP32;
}

/// The alignment of a term to the common grid. Hopper truncates magnitudes; the alternative exists
/// so that tests can show it to be wrong.
enum class Alignment : std::uint8_t { truncate, nearest_even };

inline constexpr int kNoExponentFloor = -100000;

/// One fused group: `products` products and one addend, each aligned to 2^(emax - fraction_bits),
/// summed exactly, normalised and rounded once.
struct GroupModel {
  int products = 32;
  int fraction_bits = 13;
  OutputKind output = OutputKind::f32_truncated;
  int output_mantissa_bits = 13;        ///< f32_truncated only
  int min_exponent = kNoExponentFloor;  ///< lower limit of emax
  Alignment alignment = Alignment::truncate;
  bool normalize_products = false;   ///< hypothesis refuted for Hopper: emax of normalised products
  bool zero_products_count = false;  ///< hypothesis refuted for Hopper: a zero product raises emax
  Alignment output_rounding = Alignment::truncate;  ///< f32_truncated only
  /// Scales of both operands enter the instruction: a product counts in emax at the sum of the
  /// exponents of its factors and of their two scales, see scaled_group.
  bool block_scales = false;
  /// block_scales only. Above 0: this many neighbouring products are summed exactly and form one
  /// term, which counts in emax at the exponents of its two scales alone.
  int exact_products = 0;
  /// Above 0: the products are summed first and then meet the accumulator on a grid of this many
  /// bits, see late_group. FP32 output only.
  int late_fraction_bits = 0;
  int partial_sums = 1;  ///< late_fraction_bits only: product i belongs to the sum i % partial_sums

  constexpr bool operator==(const GroupModel&) const = default;
};

/// wgmma m64nNk32, any pair of e4m3/e5m2, FP32 accumulator. Measured: 4 x 4.30e9 outputs on an
/// H200, 0 differences.
inline constexpr GroupModel kSm90WgmmaFp8F32{32, 13, OutputKind::f32_truncated, 13};

/// wgmma m64nNk32, any pair of e4m3/e5m2, FP16 accumulator. Measured: 4 x 4.30e9 outputs on an
/// H200, 0 differences.
inline constexpr GroupModel kSm90WgmmaFp8F16{32, 13, OutputKind::f16_nearest, 10};

/// wgmma k16 and mma.sync m16n8k16, bf16, FP32 accumulator. Measured: 2 x 4.30e9 outputs on an
/// H200, 0 differences; the floor -133 is singled out by 3.6e7 tiny products.
inline constexpr GroupModel kSm90Bf16F32{16, 25, OutputKind::f32_truncated, 23, -133};

/// wgmma k16 and mma.sync m16n8k16, f16, FP32 accumulator. Measured: 2 x 4.30e9 outputs on an
/// H200, 0 differences.
inline constexpr GroupModel kSm90Fp16F32{16, 25, OutputKind::f32_truncated, 23, -133};

/// wgmma k16 and mma.sync m16n8k16, f16, FP16 accumulator. Measured: 2 x 4.30e9 outputs on an
/// H200, 0 differences.
inline constexpr GroupModel kSm90Fp16F16{16, 25, OutputKind::f16_nearest, 10};

/// wgmma k8 and mma.sync, tf32, FP32 accumulator. Replayed for four products (H100, H200, B200);
/// that eight are one group is published (MMA-Sim; Khattak and Mikaitis). The floor is the one
/// measured for the 16-bit formats on the same unit.
inline constexpr GroupModel kSm90Tf32F32{8, 25, OutputKind::f32_truncated, 23, -133};

/// mma.sync of sm_70, f16, FP32 accumulator. Replayed: V100.
inline constexpr GroupModel kSm70Fp16F32{4, 23, OutputKind::f32_truncated, 23};

/// As above, with an FP16 accumulator. Replayed: V100.
inline constexpr GroupModel kSm70Fp16F16{4, 23, OutputKind::f16_nearest, 10};

/// mma.sync of sm_80, sm_86 and sm_89, bf16 and f16, FP32 accumulator. Replayed: A100, A2, Ada,
/// L40S; no record reaches the floor, which is published (Khattak and Mikaitis).
inline constexpr GroupModel kSm80Bf16F32{8, 24, OutputKind::f32_truncated, 23, -132};

/// As above, for f16 with an FP16 accumulator. Replayed: A100, A2, Ada, L40S.
inline constexpr GroupModel kSm80Fp16F16{8, 24, OutputKind::f16_nearest, 10};

/// mma.sync of sm_80, sm_86 and sm_89, tf32, FP32 accumulator. Replayed as kSm80Bf16F32.
inline constexpr GroupModel kSm80Tf32F32{4, 24, OutputKind::f32_truncated, 23, -132};

/// mma.sync m16n8k32 on sm_89, any pair of e4m3/e5m2, FP32 accumulator: two groups in k order.
/// Published (MMA-Sim) and replayed: Ada, L40S.
inline constexpr GroupModel kSm89MmaFp8F32{16, 13, OutputKind::f32_truncated, 13};

/// As above, with an FP16 accumulator. Published (MMA-Sim) and replayed: Ada.
inline constexpr GroupModel kSm89MmaFp8F16{16, 13, OutputKind::f16_nearest, 10};

/// tcgen05.mma kind::f8f6f4 without block scales, FP32 accumulator. Published (MMA-Sim). Not the
/// rule of mma.sync on sm_100, which is mma_sync_fp8.
inline constexpr GroupModel kSm100F8f6f4F32{32, 25, OutputKind::f32_truncated, 23};

/// tcgen05.mma and mma.sync kind::mxf8f6f4, one E8M0 scale per 32 elements, FP32 accumulator.
/// Published (MMA-Sim), where zero terms count at -126, which acts as a floor.
inline constexpr GroupModel kSm100Mxf8f6f4{
    .products = 32,
    .fraction_bits = 25,
    .output_mantissa_bits = 23,
    .min_exponent = -126,
    .block_scales = true,
};

/// tcgen05.mma and mma.sync kind::mxf4nvf4, E2M1 elements with one E8M0 scale per 32 or one E4M3
/// scale per 16, FP32 accumulator. Published (MMA-Sim), floor as above.
inline constexpr GroupModel kSm100Mxf4nvf4{
    .products = 64,
    .fraction_bits = 35,
    .output_mantissa_bits = 23,
    .min_exponent = -126,
    .block_scales = true,
    .exact_products = 16,
};

/// v_mfma of CDNA3, any pair of e4m3fnuz/e5m2fnuz: even and odd products are summed separately.
/// Published (MMA-Sim: GTR-FDPA with F = 24, F2 = 31, and FP32 to nearest even).
inline constexpr GroupModel kCdna3Fp8F32{
    .products = 16,
    .fraction_bits = 24,
    .output_mantissa_bits = 23,
    .output_rounding = Alignment::nearest_even,
    .late_fraction_bits = 31,
    .partial_sums = 2,
};

/// An operand in the multiplier: (-1)^negative * significand * 2^(exponent - mantissa_bits), not
/// normalised. A subnormal keeps exponent 1 - bias.
struct Unpacked {
  std::uint32_t significand = 0;
  int exponent = 0;
  bool negative = false;
  bool infinite = false;
  bool nan = false;
};

/// Splits a code of `format` without normalising it (specification.md, "Formats and codes").
FP8LAB_HD constexpr Unpacked unpack(FormatSpec format, std::uint32_t code) {
  Unpacked value;
  const std::uint32_t magnitude = code & format.magnitude_mask();
  value.negative = (code & format.sign_mask()) != 0;
  value.nan = format.is_nan(code);
  value.infinite = format.is_infinity(code);
  if (value.nan || value.infinite) return value;
  const std::uint32_t field = magnitude >> format.mantissa_bits;
  value.significand = magnitude & ((1u << format.mantissa_bits) - 1u);
  if (field == 0 && format.has_subnormals) {
    value.exponent = format.min_exponent();
  } else {
    value.significand |= 1u << format.mantissa_bits;
    value.exponent = static_cast<int>(field) - format.bias;
  }
  return value;
}

/// Returns the position of the highest set bit of a nonzero value.
FP8LAB_HD constexpr int highest_bit64(std::uint64_t value) {
  const auto upper = static_cast<std::uint32_t>(value >> 32);
  return upper != 0 ? 32 + highest_bit(upper) : highest_bit(static_cast<std::uint32_t>(value));
}

/// Returns magnitude * 2^-shift as an integer: truncated, or to nearest even.
/// Negative shifts are exact.
FP8LAB_HD constexpr std::uint64_t shift_right(std::uint64_t magnitude, int shift,
                                              Alignment alignment) {
  if (shift <= 0) return magnitude << -shift;
  if (shift > 63) return 0;
  const std::uint64_t kept = magnitude >> shift;
  if (alignment == Alignment::truncate) return kept;
  const std::uint64_t rest = magnitude & ((std::uint64_t{1} << shift) - 1u);
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1u) != 0) ? 1u : 0u);
}

/// Returns the FP32 bits of magnitude * 2^exponent with `mantissa_bits` of the 23 mantissa bits
/// kept, rounded toward zero or by `rounding`. Subnormals are cut on the grid
/// 2^(-126 - mantissa_bits); above the range gives infinity; a zero result is +0.
FP8LAB_HD constexpr std::uint32_t f32_truncated(bool negative, std::uint64_t magnitude,
                                                int exponent, int mantissa_bits,
                                                Alignment rounding = Alignment::truncate) {
  if (magnitude == 0) return 0;
  const int leading = highest_bit64(magnitude) + exponent;
  const std::uint32_t sign = negative ? 0x80000000u : 0u;
  if (leading > 127) return sign | kF32Infinity;
  const int floor = leading < -126 ? -126 : leading;
  const std::uint64_t kept = shift_right(magnitude, floor - mantissa_bits - exponent, rounding);
  if (kept == 0) return 0;
  // The hidden bit, or a carry out of the mantissa, adds to the exponent field.
  const std::uint32_t code = static_cast<std::uint32_t>(kept) << (23 - mantissa_bits);
  return sign | (code + (static_cast<std::uint32_t>(floor + 126) << 23));
}

/// Returns the FP16 bits of magnitude * 2^exponent, to nearest even, subnormals kept, overflow to
/// infinity; a zero result is +0.
FP8LAB_HD constexpr std::uint32_t f16_nearest(bool negative, std::uint64_t magnitude,
                                              int exponent) {
  if (magnitude == 0) return 0;
  const int leading = highest_bit64(magnitude) + exponent;
  const std::uint32_t sign = negative ? 0x8000u : 0u;
  if (leading > 15) return sign | kFP16.infinity_code();
  const int floor = leading < -14 ? -14 : leading;
  const std::uint64_t kept = shift_right(magnitude, floor - 10 - exponent, Alignment::nearest_even);
  if (kept == 0) return 0;
  // A carry out of the mantissa adds one to the exponent field; 65520 and above become infinity.
  return sign | (static_cast<std::uint32_t>(kept) + (static_cast<std::uint32_t>(floor + 14) << 10));
}

/// Special operands of a group (specification.md, "The group", step 1).
struct GroupSpecials {
  bool nan = false;
  bool positive_infinity = false;
  bool negative_infinity = false;

  FP8LAB_HD constexpr bool any() const { return nan || positive_infinity || negative_infinity; }

  FP8LAB_HD constexpr void add_infinity(bool negative) {
    (negative ? negative_infinity : positive_infinity) = true;
  }

  /// Adds the product a * b; returns true if it was special.
  FP8LAB_HD constexpr bool add_product(const Unpacked& a, const Unpacked& b) {
    if (a.nan || b.nan) return nan = true;
    if (!a.infinite && !b.infinite) return false;
    const bool times_zero =
        (!a.infinite && a.significand == 0) || (!b.infinite && b.significand == 0);
    if (times_zero) return nan = true;
    add_infinity(a.negative != b.negative);
    return true;
  }

  FP8LAB_HD constexpr std::uint32_t result(FormatSpec format) const {
    if (nan || (positive_infinity && negative_infinity)) return format.nan_code();
    return format.infinity_code() | (negative_infinity ? format.sign_mask() : 0u);
  }
};

/// One signed term of a group: significand * 2^unit, counted in emax at `exponent`.
struct GroupTerm {
  std::uint64_t significand = 0;
  int unit = 0;
  int exponent = 0;
  bool negative = false;
};

FP8LAB_HD constexpr GroupTerm product_term(const GroupModel& model, FormatSpec fa, FormatSpec fb,
                                           const Unpacked& a, const Unpacked& b) {
  GroupTerm term;
  term.significand = std::uint64_t{a.significand} * b.significand;
  term.exponent = a.exponent + b.exponent;
  term.unit = term.exponent - fa.mantissa_bits - fb.mantissa_bits;
  term.negative = a.negative != b.negative;
  if (model.normalize_products && term.significand != 0) {
    term.exponent = term.unit + highest_bit64(term.significand);
  }
  return term;
}

/// Steps 3 and 4 of specification.md, "The group": `count` terms cut to the grid 2^(emax -
/// fraction_bits), summed exactly, normalised and rounded once to the accumulator's format.
FP8LAB_HD constexpr std::uint32_t sum_terms(const GroupModel& model, const GroupTerm* terms,
                                            int count, int emax) {
  const int grid = emax - model.fraction_bits;
  std::int64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const auto units = static_cast<std::int64_t>(
        shift_right(terms[i].significand, grid - terms[i].unit, model.alignment));
    sum += terms[i].negative ? -units : units;
  }
  const bool negative = sum < 0;
  const auto magnitude = static_cast<std::uint64_t>(negative ? -sum : sum);
  return model.output == OutputKind::f16_nearest
             ? f16_nearest(negative, magnitude, grid)
             : f32_truncated(negative, magnitude, grid, model.output_mantissa_bits,
                             model.output_rounding);
}

/// Returns floor(units * 2^-shift). Negative shifts are exact.
FP8LAB_HD constexpr std::int64_t shift_down(std::int64_t units, int shift) {
  if (shift <= 0) return units * (std::int64_t{1} << -shift);
  return units >> (shift < 63 ? shift : 63);
}

inline constexpr int kMostPartialSums = 4;

/// The group of a unit that adds the accumulator last (model.late_fraction_bits > 0; MMA-Sim:
/// GTR-FDPA). In each partial sum products are cut to model.fraction_bits below its own largest
/// exponent and added exactly. Then everything is rounded down: the partial sums to the grid of
/// the largest of them, their sum to late_fraction_bits below E, the larger of its exponent and
/// that of c, and c to fraction_bits below E. A c whose exponent is below E - fraction_bits - 1 is
/// left out. Zero products and a zero c have no exponent. Accumulator and result are FP32, rounded
/// once by model.output_rounding; NaN is canonical.
template <class CodeA, class CodeB>
FP8LAB_HD constexpr std::uint32_t late_group(const GroupModel& model, FormatSpec fa, FormatSpec fb,
                                             const CodeA* a, const CodeB* b, int n,
                                             std::uint32_t c_bits) {
  const Unpacked c = unpack(kFP32, c_bits);
  GroupSpecials specials;
  specials.nan = c.nan;
  if (c.infinite) specials.add_infinity(c.negative);

  std::int64_t sums[kMostPartialSums] = {};
  int exponents[kMostPartialSums] = {};
  int largest = kNoExponentFloor;
  for (int s = 0; s < model.partial_sums; ++s) {
    GroupTerm terms[32] = {};
    int count = 0;
    exponents[s] = kNoExponentFloor;
    for (int i = s; i < n; i += model.partial_sums) {
      const Unpacked x = unpack(fa, a[i]);
      const Unpacked y = unpack(fb, b[i]);
      if (specials.add_product(x, y)) continue;
      const GroupTerm term = product_term(model, fa, fb, x, y);
      if (term.significand == 0) continue;
      if (term.exponent > exponents[s]) exponents[s] = term.exponent;
      terms[count++] = term;
    }
    for (int i = 0; i < count; ++i) {
      const int shift = exponents[s] - model.fraction_bits - terms[i].unit;
      const auto units =
          static_cast<std::int64_t>(shift_right(terms[i].significand, shift, model.alignment));
      sums[s] += terms[i].negative ? -units : units;
    }
    if (exponents[s] > largest) largest = exponents[s];
  }
  if (specials.any()) return specials.result(kFP32);

  std::int64_t sum = 0;
  for (int s = 0; s < model.partial_sums; ++s) {
    sum += shift_down(sums[s], largest - exponents[s]);
  }
  const bool with_c = c.significand != 0 && c.exponent >= largest - model.fraction_bits - 1;
  const int top = with_c && c.exponent > largest ? c.exponent : largest;
  sum = shift_down(sum, top - model.late_fraction_bits - (largest - model.fraction_bits));
  if (with_c) {
    const auto units = static_cast<std::int64_t>(c.significand);
    const int unit = c.exponent - kFP32.mantissa_bits;
    sum += shift_down(shift_down(c.negative ? -units : units, top - model.fraction_bits - unit),
                      model.fraction_bits - model.late_fraction_bits);
  }
  const bool negative = sum < 0;
  const auto magnitude = static_cast<std::uint64_t>(negative ? -sum : sum);
  return f32_truncated(negative, magnitude, top - model.late_fraction_bits,
                       model.output_mantissa_bits, model.output_rounding);
}

/// The fused group over n <= 32 products a[i] * b[i] and the accumulator c: takes and returns
/// accumulator bits (FP32, or FP16 for OutputKind::f16_nearest). Codes are any unsigned type of at
/// most 32 bits; products beyond n are zero. Special values, alignment, truncation and the single
/// rounding follow specification.md, "The group", with the parameters of `model`, or late_group;
/// integer arithmetic only.
template <class CodeA, class CodeB>
FP8LAB_HD constexpr std::uint32_t fused_group(const GroupModel& model, FormatSpec fa, FormatSpec fb,
                                              const CodeA* a, const CodeB* b, int n,
                                              std::uint32_t c_bits) {
  if (model.late_fraction_bits > 0) return late_group(model, fa, fb, a, b, n, c_bits);
  const FormatSpec fc = accumulator_format(model.output);
  const Unpacked c = unpack(fc, c_bits);
  GroupSpecials specials;
  specials.nan = c.nan;
  if (c.infinite) specials.add_infinity(c.negative);

  GroupTerm terms[33] = {};
  int count = 0;
  int emax = model.min_exponent;
  for (int i = 0; i < n; ++i) {
    const Unpacked x = unpack(fa, a[i]);
    const Unpacked y = unpack(fb, b[i]);
    if (specials.add_product(x, y)) continue;
    const GroupTerm term = product_term(model, fa, fb, x, y);
    if (term.significand == 0 && !model.zero_products_count) continue;
    if (term.exponent > emax) emax = term.exponent;
    terms[count++] = term;
  }
  if (specials.any()) return specials.result(fc);
  if (c.significand != 0) {
    if (c.exponent > emax) emax = c.exponent;
    terms[count++] = {c.significand, c.exponent - fc.mantissa_bits, c.exponent, c.negative};
  }
  return sum_terms(model, terms, count, emax);
}

/// Scales of one group: element i of A has the scale a[i / width], a value of `format`.
struct GroupScales {
  FormatSpec format = kE8M0;
  int width = 32;
  const float* a = nullptr;
  const float* b = nullptr;
};

/// Returns a scale in the form of the multiplier. The scale must be a value of `format` or NaN.
FP8LAB_HD constexpr Unpacked unpack_scale(FormatSpec format, float scale) {
  return unpack(format, encode(format, float_bits(scale), Rounding::nearest, Overflow::saturate));
}

/// The fused group of a block-scaled instruction over n <= model.products products
/// a[i] sA b[i] sB and the FP32 accumulator c (MMA-Sim: fdpa with scales). With
/// model.exact_products = 0 each product is a term of exponent e(a) + e(b) + e(sA) + e(sB), nothing
/// normalised. Otherwise that many products, which share their scales, are first summed exactly,
/// and the sum is a term of exponent e(sA) + e(sB). Zero terms raise emax only to
/// model.min_exponent; a NaN scale makes the result NaN. Alignment, sum and rounding are those
/// of fused_group.
template <class CodeA, class CodeB>
FP8LAB_HD constexpr std::uint32_t scaled_group(const GroupModel& model, FormatSpec fa,
                                               FormatSpec fb, const CodeA* a, const CodeB* b, int n,
                                               const GroupScales& scales, std::uint32_t c_bits) {
  const Unpacked c = unpack(kFP32, c_bits);
  GroupSpecials specials;
  specials.nan = c.nan;
  if (c.infinite) specials.add_infinity(c.negative);

  const bool exact = model.exact_products > 0;
  const int step = exact ? model.exact_products : 1;
  // The finest unit of a product; every product is an integer multiple of it.
  const int finest = fa.min_exponent() - fa.mantissa_bits + fb.min_exponent() - fb.mantissa_bits;
  GroupTerm terms[33] = {};
  int count = 0;
  int emax = model.min_exponent;
  for (int first = 0; first < n; first += step) {
    const Unpacked sa = unpack_scale(scales.format, scales.a[first / scales.width]);
    const Unpacked sb = unpack_scale(scales.format, scales.b[first / scales.width]);
    specials.nan = specials.nan || sa.nan || sb.nan;
    GroupTerm term;
    std::int64_t sum = 0;
    for (int i = first; i < n && i < first + step; ++i) {
      const Unpacked x = unpack(fa, a[i]);
      const Unpacked y = unpack(fb, b[i]);
      if (specials.add_product(x, y)) continue;
      term = product_term(model, fa, fb, x, y);
      if (!exact) continue;
      const auto units = static_cast<std::int64_t>(term.significand << (term.unit - finest));
      sum += term.negative ? -units : units;
    }
    if (exact) {
      term = {static_cast<std::uint64_t>(sum < 0 ? -sum : sum), finest, 0, sum < 0};
    }
    term.significand *= std::uint64_t{sa.significand} * sb.significand;
    if (term.significand == 0) continue;
    term.exponent += sa.exponent + sb.exponent;
    term.unit += sa.exponent + sb.exponent - 2 * scales.format.mantissa_bits;
    if (term.exponent > emax) emax = term.exponent;
    terms[count++] = term;
  }
  if (specials.any()) return specials.result(kFP32);
  if (c.significand != 0) {
    if (c.exponent > emax) emax = c.exponent;
    terms[count++] = {c.significand, c.exponent - kFP32.mantissa_bits, c.exponent, c.negative};
  }
  return sum_terms(model, terms, count, emax);
}

/// Returns the IEEE sum of two FP16 values, to nearest even, signed zeros kept, canonical NaN.
FP8LAB_HD constexpr std::uint32_t add_f16(std::uint32_t x_bits, std::uint32_t y_bits) {
  const Unpacked x = unpack(kFP16, x_bits);
  const Unpacked y = unpack(kFP16, y_bits);
  GroupSpecials specials;
  specials.nan = x.nan || y.nan;
  if (x.infinite) specials.add_infinity(x.negative);
  if (y.infinite) specials.add_infinity(y.negative);
  if (specials.any()) return specials.result(kFP16);
  // Both on the grid 2^-24 of the smallest subnormal: at most 41 bits.
  const auto ux = static_cast<std::int64_t>(std::uint64_t{x.significand} << (x.exponent + 14));
  const auto uy = static_cast<std::int64_t>(std::uint64_t{y.significand} << (y.exponent + 14));
  const std::int64_t sum = (x.negative ? -ux : ux) + (y.negative ? -uy : uy);
  if (sum == 0) return x.negative && y.negative ? 0x8000u : 0u;
  return f16_nearest(sum < 0, static_cast<std::uint64_t>(sum < 0 ? -sum : sum), -24);
}

/// Returns the IEEE sum of two FP32 values with the canonical NaN.
FP8LAB_HD constexpr std::uint32_t add_f32(std::uint32_t x_bits, std::uint32_t y_bits) {
  const float sum = bits_float(x_bits) + bits_float(y_bits);
  return sum != sum ? kF32NaN : float_bits(sum);
}

/// mma.sync m16n8k32 on FP8 codes as sm_90 executes it: operands are widened to FP16, two groups of
/// 16 run over the interleaved halves k % 4 in {0, 1} and {2, 3}, then c is added with an IEEE
/// rounding. n <= 32 products; `output` selects the FP32 or the FP16 accumulator, the format of
/// `c_bits` and of the result. Measured: 8 x 4.30e9 outputs on an H200, 0 differences
/// (specification.md, "Tensor cores").
template <class CodeA, class CodeB>
FP8LAB_HD constexpr std::uint32_t mma_sync_fp8(OutputKind output, FormatSpec fa, FormatSpec fb,
                                               const CodeA* a, const CodeB* b, int n,
                                               std::uint32_t c_bits) {
  const bool to_f16 = output == OutputKind::f16_nearest;
  std::uint32_t x[2][16] = {};
  std::uint32_t y[2][16] = {};
  int filled[2] = {0, 0};
  for (int k = 0; k < n; ++k) {
    const int half = k % 4 < 2 ? 0 : 1;
    const int slot = filled[half]++;
    x[half][slot] = encode(kFP16, decode_bits(fa, a[k]), Rounding::nearest, Overflow::special);
    y[half][slot] = encode(kFP16, decode_bits(fb, b[k]), Rounding::nearest, Overflow::special);
  }
  GroupModel model = kSm90Fp16F32;
  if (to_f16) model = GroupModel(kSm90Fp16F16);
  std::uint32_t partial = fused_group(model, kFP16, kFP16, x[0], y[0], 16, 0u);
  partial = fused_group(model, kFP16, kFP16, x[1], y[1], 16, partial);
  return to_f16 ? add_f16(partial, c_bits) : add_f32(partial, c_bits);
}

FP8LAB_NUMERICS_END
