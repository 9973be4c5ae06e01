// Parameters of scale derivation (specification.md, "Scales"); scaling.hpp
// has the rules themselves.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Values that a stored scale may take.
enum class ScaleFormat : std::uint8_t {
  fp32,          ///< any FP32 value
  pow2,          ///< a power of two held in FP32
  e8m0,          ///< a power of two in [2^-127, 2^127]
  bf16,          ///< a BF16 value (COAT); values are divided by the stored scale
  e4m3,          ///< a positive E4M3 value, at most 448
  nv_two_level,  ///< an E4M3 value per tile times an FP32 factor, see OuterScale (NVFP4)
};

/// Derivation of a power-of-two scale; for ScaleFormat::pow2 and e8m0 only.
enum class ScaleRounding : std::uint8_t {
  nearest,    ///< log2(amax/Qmax) to the nearest integer
  ceil,       ///< decode exponent ceil(log2(amax/Qmax)) (InfiR2, DeepSeek-V3)
  enc_floor,  ///< encode factor RN(Qmax/amax), mantissa cleared (TransformerEngine)
  ocp_floor,  ///< floor(log2 amax) - emax of the element format (OCP MX 1.0)
  rceil,      ///< RN(amax * RN(1/Qmax)) rounded up to a power of two (TransformerEngine MXFP8)
  even,       ///< amax rounded to the element's mantissa width first, then as ocp_floor
  floor,      ///< decode exponent floor(log2(amax/Qmax)) (QuEST as released)
};

/// The FP32 operations that produce the cast value. They differ in 0.1 to 3 % of the codes.
enum class ScaleArithmetic : std::uint8_t {
  enc_div,        ///< enc = RN(Qmax/amax), q = cast(x * enc), stored scale RN(1/enc)
  dec_div_recip,  ///< scale = RN(amax/Qmax), q = cast(x * RN(1/scale))
  dec_div,        ///< scale = RN(amax/Qmax), q = cast(x / scale)
};

/// The way in which amax_epsilon keeps scales away from zero.
enum class EpsilonMode : std::uint8_t {
  floor,  ///< amax becomes max(amax, epsilon) (TransformerEngine, torchao, DeepGEMM)
  add,    ///< amax becomes RN(amax + epsilon) (COAT)
};

/// The replacement of an infinite encode factor RN(Qmax/amax).
enum class EncodeLimit : std::uint8_t {
  fp32,  ///< the largest FP32 number (TransformerEngine, per tensor)
  bf16,  ///< the largest BF16 number (TransformerEngine, blocks of BF16 input)
};

/// The replacement of a power-of-two scale above 2^127.
enum class ScaleOverflow : std::uint8_t {
  saturate,  ///< 2^127
  nan,       ///< NaN, which makes the tile NaN (microxcaling)
};

/// Whether a two-level tile may map its amax to two thirds of Qmax, 4 for e2m1, instead of Qmax, if
/// that represents the tile better.
enum class FourOverSix : std::uint8_t {
  none,
  mae,  ///< smaller sum of |x - dequantized x|
  mse,  ///< smaller sum of squares
};

/// The extent of the FP32 factor of a two-level scale.
enum class OuterScale : std::uint8_t {
  tensor,
  row,  ///< each row of the operand has its own (TransformerEngine, row-scaled NVFP4)
};

/// All parameters that turn the amax of one tile into its scale.
struct ScaleRule {
  ScaleFormat format = ScaleFormat::fp32;
  ScaleRounding rounding = ScaleRounding::nearest;
  ScaleArithmetic arithmetic = ScaleArithmetic::enc_div;
  float amax_epsilon = 0.0f;  ///< keeps amax from zero, see epsilon_mode
  int margin = 0;             ///< Qmax is divided by 2^margin
  EpsilonMode epsilon_mode = EpsilonMode::floor;
  EncodeLimit encode_limit = EncodeLimit::fp32;            ///< for enc_div
  ScaleOverflow scale_overflow = ScaleOverflow::saturate;  ///< for e8m0
  FourOverSix four_over_six = FourOverSix::none;           ///< for nv_two_level
  OuterScale outer = OuterScale::tensor;                   ///< for nv_two_level
  /// Above 0: this many standard deviations of the tile replace its amax (tile_deviation.hpp).
  float deviations = 0.0f;
  float factor = 1.0f;  ///< for pow2: the scale is the power of two times this

  constexpr bool operator==(const ScaleRule&) const = default;
  /// Returns true if the scale is a power of two by `rounding`, times `factor`.
  FP8LAB_HD constexpr bool is_power_of_two() const {
    return format == ScaleFormat::pow2 || format == ScaleFormat::e8m0;
  }
  /// Returns true if the cast value is x / scale: only if the quotient is
  /// not x times a power of two.
  FP8LAB_HD constexpr bool divides() const {
    return arithmetic == ScaleArithmetic::dec_div && !is_power_of_two() &&
           format != ScaleFormat::nv_two_level;
  }
};

FP8LAB_NUMERICS_END
