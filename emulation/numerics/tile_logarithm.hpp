// LogFMT-n: each tile has its own logarithmic codebook between its extremes (arXiv:2505.09343).
#pragma once

#include <cstdint>

#include "emulation/numerics/exact_math.hpp"
#include "emulation/numerics/format.hpp"
#include "emulation/numerics/host_device.hpp"

FP8LAB_NUMERICS_BEGIN

/// Codebook of one tile: magnitude code 0 is zero, code k = 1 .. K is scale * 2^(-step * (K - k)),
/// with K = max_finite_code. Code K is the largest magnitude itself.
struct LogCodebook {
  float scale = 1.0f;
  float step = 0.0f;  ///< in octaves
};

/// Returns the codebook of a tile from its largest magnitude and its smallest nonzero one:
/// step = min(log2 amax - log2 amin, 32) / (K - 1), so that the smallest code represents amin, or
/// 2^-32 amax. A zero tile has scale 1; infinite or NaN amax makes the whole tile NaN.
FP8LAB_HD inline LogCodebook log_codebook(FormatSpec format, float amax, float amin) {
  if (float_bits(amax) == 0u) return {};
  if (float_bits(amax) >= kF32Infinity) return {bits_float(kF32NaN), 0.0f};
  const float span = log2(amax) - log2(amin);
  const float bounded = span < 32.0f ? span : 32.0f;
  return {amax, bounded / static_cast<float>(format.max_finite_code() - 1u)};
}

/// Returns the value of a code: the FP32 product of the scale and a power
/// by numerics::exp2, signed.
FP8LAB_HD inline float decode_log_codebook(FormatSpec format, const LogCodebook& book,
                                           std::uint32_t code) {
  const std::uint32_t k = code & format.magnitude_mask();
  const float below = static_cast<float>(format.max_finite_code() - k);
  const float power = k == 0u ? 0.0f : exp2(-(book.step * below));
  return book.scale * ((code & format.sign_mask()) != 0u ? -power : power);
}

/// Returns whether `magnitude`, lo <= magnitude < hi, rounds to hi: in linear space, with FP32
/// differences. `odd`: the code of lo is odd; `negative` is the sign of the number. Stochastic uses
/// the upper 24 bits of `random_bits`.
FP8LAB_HD inline bool rounds_to_upper(float lo, float hi, float magnitude, Rounding rounding,
                                      bool odd, bool negative, std::uint32_t random_bits) {
  const float up = hi - magnitude;
  const float down = magnitude - lo;
  switch (rounding) {
    case Rounding::nearest: return down > up || (down == up && odd);
    case Rounding::ties_down: return down > up;
    case Rounding::ties_positive: return down > up || (down == up && !negative);
    case Rounding::toward_zero: return false;
    case Rounding::stochastic:
      return static_cast<float>(random_bits >> 8) * 0x1p-24f * (hi - lo) < down;
  }
  return false;
}

/// Returns the code of an FP32 value in a tile's codebook. Finds the neighbours by bisection over
/// the decoded values. Magnitudes larger than the tile's saturate, and NaN gives code 0 (the scale
/// of its tile is NaN).
FP8LAB_HD inline std::uint32_t encode_log_codebook(FormatSpec format, const LogCodebook& book,
                                                   float x, Rounding rounding,
                                                   std::uint32_t random_bits) {
  const bool negative = (float_bits(x) >> 31) != 0u;
  const std::uint32_t sign = negative ? format.sign_mask() : 0u;
  const float magnitude = bits_float(float_bits(x) & 0x7FFFFFFFu);
  if (float_bits(magnitude) > kF32Infinity) return 0u;
  if (float_bits(magnitude) == 0u) return sign;
  std::uint32_t below = 0, above = format.max_finite_code();
  if (decode_log_codebook(format, book, above) <= magnitude) return sign | above;
  while (above - below > 1u) {
    const std::uint32_t middle = (below + above) / 2u;
    if (decode_log_codebook(format, book, middle) <= magnitude) {
      below = middle;
    } else {
      above = middle;
    }
  }
  const bool up = rounds_to_upper(decode_log_codebook(format, book, below),
                                  decode_log_codebook(format, book, above), magnitude, rounding,
                                  below % 2u == 1u, negative, random_bits);
  return sign | (up ? above : below);
}

FP8LAB_NUMERICS_END
