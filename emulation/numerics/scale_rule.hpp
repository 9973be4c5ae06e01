// The vocabulary of scale derivation (recipes.md section 0.3); the rules themselves are scaling.hpp.
#pragma once

#include <cstdint>

#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Values a stored scale may take.
enum class ScaleFormat : std::uint8_t {
  fp32,  ///< any FP32 value
  pow2,  ///< a power of two held in FP32
  e8m0,  ///< a power of two in [2^-127, 2^127]
};

/// How a power-of-two scale is derived. Ignored for ScaleFormat::fp32.
enum class ScaleRounding : std::uint8_t {
  nearest,    ///< log2(amax/Qmax) to the nearest integer
  ceil,       ///< decode exponent ceil(log2(amax/Qmax)) (InfiR2, DeepSeek-V3)
  enc_floor,  ///< encode factor RN(Qmax/amax), mantissa cleared (TransformerEngine)
  ocp_floor,  ///< floor(log2 amax) - emax of the element format (OCP MX 1.0)
  rceil,      ///< RN(amax * RN(1/Qmax)) rounded up to a power of two (TransformerEngine MXFP8)
  even,       ///< amax rounded to the element's mantissa width first, then as ocp_floor
};

/// Which FP32 operations produce the value that is cast. They differ in 0.1 to 3 % of the codes.
enum class ScaleArithmetic : std::uint8_t {
  enc_div,        ///< enc = RN(Qmax/amax), q = cast(x * enc), stored scale RN(1/enc)
  dec_div_recip,  ///< scale = RN(amax/Qmax), q = cast(x * RN(1/scale))
  dec_div,        ///< scale = RN(amax/Qmax), q = cast(x / scale)
};

/// Everything that turns the amax of one tile into its scale.
struct ScaleRule {
  ScaleFormat format = ScaleFormat::fp32;
  ScaleRounding rounding = ScaleRounding::nearest;
  ScaleArithmetic arithmetic = ScaleArithmetic::enc_div;
  float amax_epsilon = 0.0f;  ///< amax is raised to at least this
  int margin = 0;             ///< Qmax is divided by 2^margin

  constexpr bool operator==(const ScaleRule&) const = default;
};

FP8LAB_NUMERICS_END
