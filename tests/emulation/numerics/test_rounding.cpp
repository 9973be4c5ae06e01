#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/few_random_bits.hpp"

using namespace fp8lab::numerics;

namespace {

constexpr FormatSpec kSmallFormats[] = {kE4M3, kE5M2, kE3M4, kE2M3, kE3M2, kE2M1};
constexpr FormatSpec kSignedFormats[] = {kE4M3, kE5M2, kE3M4, kE2M3, kE3M2, kE2M1, kBF16, kFP16};
constexpr Rounding kDeterministic[] = {Rounding::nearest, Rounding::toward_zero};

// Finite magnitudes: all exponents, mantissas with few, many and random bits.
std::uint32_t finite_magnitude(std::mt19937& random) {
  const std::uint32_t field = static_cast<std::uint32_t>(random()) % 255u;
  std::uint32_t mantissa = static_cast<std::uint32_t>(random()) & 0x7FFFFFu;
  if (random() % 2 == 0) mantissa &= 0x7FFFFFu << random() % 24;
  return field << 23 | mantissa;
}

float rounded(FormatSpec format, std::uint32_t bits, Rounding rounding, std::uint32_t random = 0) {
  return decode(format, encode(format, bits, rounding, Overflow::saturate, random));
}

}  // namespace

TEST_CASE("rounding is monotone") {
  std::mt19937 random(1);
  for (const FormatSpec format : kSignedFormats) {
    for (const Rounding rounding : kDeterministic) {
      for (int i = 0; i < 20000; ++i) {
        const std::uint32_t a = finite_magnitude(random);
        const std::uint32_t b = i % 2 == 0 ? finite_magnitude(random) : a + 1u;
        if (b >= kF32Infinity) continue;
        const float low = rounded(format, a < b ? a : b, rounding);
        const float high = rounded(format, a < b ? b : a, rounding);
        REQUIRE(low <= high);
      }
    }
  }
}

TEST_CASE("rounding is idempotent: representable values stay") {
  for (const FormatSpec format : kSignedFormats) {
    for (std::uint32_t code = 0; code <= format.max_finite_code(); ++code) {
      const std::uint32_t bits = decode_bits(format, code);
      REQUIRE(encode(format, bits, Rounding::nearest) == code);
      REQUIRE(encode(format, bits, Rounding::toward_zero) == code);
      for (const std::uint32_t random : {0u, 1u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
        REQUIRE(encode(format, bits, Rounding::stochastic, Overflow::saturate, random) == code);
      }
    }
  }
}

TEST_CASE("rounding is sign-symmetric") {
  std::mt19937 random(2);
  for (const FormatSpec format : kSignedFormats) {
    for (int i = 0; i < 20000; ++i) {
      const std::uint32_t bits = finite_magnitude(random);
      const auto draw = static_cast<std::uint32_t>(random());
      for (const Rounding rounding :
           {Rounding::nearest, Rounding::toward_zero, Rounding::stochastic}) {
        for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
          REQUIRE(encode(format, bits | 0x80000000u, rounding, overflow, draw) ==
                  (encode(format, bits, rounding, overflow, draw) | format.sign_mask()));
        }
      }
    }
  }
}

TEST_CASE("scaling by a power of two commutes with rounding away from the limits") {
  std::mt19937 random(3);
  for (const FormatSpec format : kSignedFormats) {
    const int lowest = format.min_exponent();
    const int highest = format.max_exponent() - 1;
    for (int i = 0; i < 20000; ++i) {
      const std::uint32_t mantissa = static_cast<std::uint32_t>(random()) & 0x7FFFFFu;
      const float base = bits_float(127u << 23 | mantissa);
      const int from = lowest + static_cast<int>(random() % 64) % (highest - lowest + 1);
      const int to = lowest + static_cast<int>(random() % 64) % (highest - lowest + 1);
      const float a = std::ldexp(base, from);
      const float b = std::ldexp(base, to);
      const auto draw = static_cast<std::uint32_t>(random());
      for (const Rounding rounding :
           {Rounding::nearest, Rounding::toward_zero, Rounding::stochastic}) {
        REQUIRE(std::ldexp(rounded(format, float_bits(a), rounding, draw), to - from) ==
                rounded(format, float_bits(b), rounding, draw));
      }
    }
  }
}

TEST_CASE("nearest picks the nearer neighbour, toward_zero the smaller") {
  std::mt19937 random(4);
  for (const FormatSpec format : kSignedFormats) {
    for (int i = 0; i < 20000; ++i) {
      const std::uint32_t bits = finite_magnitude(random);
      const float value = bits_float(bits);
      if (value > max_finite(format)) continue;
      const std::uint32_t down = encode(format, bits, Rounding::toward_zero);
      const double low = decode(format, down);
      REQUIRE(low <= static_cast<double>(value));
      if (down == format.max_finite_code()) continue;
      const double high = decode(format, down + 1u);
      REQUIRE(static_cast<double>(value) < high);
      // The sums are exact or the comparison is not close: neighbours are FP32 values.
      const double middle = low + (high - low) / 2.0;
      std::uint32_t expected = static_cast<double>(value) < middle ? down : down + 1u;
      if (static_cast<double>(value) == middle) expected = down % 2 == 0 ? down : down + 1u;
      REQUIRE(encode(format, bits) == expected);
    }
  }
}

TEST_CASE("stochastic rounding is exactly unbiased over all random bits") {
  // x = low + k/2^b of a step, with a b that lets all relevant random integers be tried: the sum of
  // the rounded values over all of them has to equal 2^shift * x exactly.
  std::mt19937 random(5);
  for (const FormatSpec format : kSmallFormats) {
    for (int i = 0; i < 12; ++i) {
      const int exponent = format.min_exponent() - 2 + i;  // two binades of subnormals
      if (exponent > format.max_exponent() - 1) break;
      const float value = std::ldexp(
          bits_float(127u << 23 | (static_cast<std::uint32_t>(random()) & 0x7FFFFFu)), exponent);
      const int below = exponent < format.min_exponent() ? format.min_exponent() - exponent : 0;
      const int shift = 23 - format.mantissa_bits + below;
      double sum = 0.0;  // exact: fewer than 53 bits
      for (std::uint32_t draw = 0; draw < 1u << shift; ++draw) {
        sum += rounded(format, float_bits(value), Rounding::stochastic, draw);
      }
      REQUIRE(sum == std::ldexp(static_cast<double>(value), shift));
    }
  }
}

TEST_CASE("stochastic rounding uses only the bits below the kept ones") {
  const float value = 1.3f;
  const int shift = 23 - kE4M3.mantissa_bits;
  for (std::uint32_t draw = 0; draw < 4096; ++draw) {
    const std::uint32_t low = draw * 257u & ((1u << shift) - 1u);
    REQUIRE(rounded(kE4M3, float_bits(value), Rounding::stochastic, low) ==
            rounded(kE4M3, float_bits(value), Rounding::stochastic, low | 0xABCu << shift));
  }
}

TEST_CASE("stochastic rounding far below the smallest subnormal") {
  // 2^-41 is 2^-32 of e4m3's step: exactly one of the 2^32 draws rounds up. Below, none does.
  const std::uint32_t tiny = float_bits(0x1p-41f);
  CHECK(rounded(kE4M3, tiny, Rounding::stochastic, 0xFFFFFFFFu) == 0x1p-9f);
  CHECK(rounded(kE4M3, tiny, Rounding::stochastic, 0xFFFFFFFEu) == 0.0f);
  CHECK(rounded(kE4M3, float_bits(0x1.FFFFFEp-42f), Rounding::stochastic, 0xFFFFFFFFu) == 0.0f);
  CHECK(rounded(kE4M3, 1u, Rounding::stochastic, 0xFFFFFFFFu) == 0.0f);
  // 3 * 2^-42: one of the two draws that a 33-bit integer would give is lost, none is invented.
  CHECK(rounded(kE4M3, float_bits(0x1.8p-41f), Rounding::stochastic, 0xFFFFFFFEu) == 0.0f);
  CHECK(rounded(kE4M3, float_bits(0x1p-40f), Rounding::stochastic, 0xFFFFFFFEu) == 0x1p-9f);
}

TEST_CASE("there is no double rounding") {
  // Rounding to the target's precision first and to its subnormal grid afterwards gives another
  // answer for these: slightly below a tie of the subnormal grid.
  for (const FormatSpec format : kSignedFormats) {
    const float step = decode(format, 1u);
    const float tie = 1.5f * step;  // between codes 1 and 2, goes to 2
    REQUIRE(encode(format, float_bits(tie)) == 2u);
    if (format == kBF16) continue;  // the neighbours of its ties are FP32 subnormals, tested below
    REQUIRE(encode(format, float_bits(tie) - 1u) == 1u);
    REQUIRE(encode(format, float_bits(0.5f * step) + 1u) == 1u);
    REQUIRE(encode(format, float_bits(0.5f * step)) == 0u);
    // Through BF16 the value just below the tie would become the tie.
    REQUIRE(to_bf16(bits_float(float_bits(tie) - 1u)) == to_bf16(tie));
  }
  REQUIRE(encode(kBF16, 0x00008000u) == 0u);
  REQUIRE(encode(kBF16, 0x00008001u) == 1u);
  REQUIRE(encode(kBF16, 0x00017FFFu) == 1u);
}

TEST_CASE("overflow is decided after rounding for every rounding") {
  for (const FormatSpec format : kSmallFormats) {
    const float largest = max_finite(format);
    const float step = largest - decode(format, format.max_finite_code() - 1u);
    const std::uint32_t inside = float_bits(largest + 0.25f * step);
    const std::uint32_t outside = float_bits(largest + step);
    REQUIRE(encode(format, inside, Rounding::nearest, Overflow::special) ==
            format.max_finite_code());
    REQUIRE(encode(format, inside, Rounding::toward_zero, Overflow::special) ==
            format.max_finite_code());
    for (const Rounding rounding :
         {Rounding::nearest, Rounding::toward_zero, Rounding::stochastic}) {
      REQUIRE(encode(format, outside, rounding) == format.max_finite_code());
      REQUIRE(encode(format, outside, rounding, Overflow::special) ==
              overflow_code(format, Overflow::special));
    }
  }
}

TEST_CASE("of all values of N random bits, the share that rounds up is floor(2^N fraction) / 2^N") {
  std::mt19937 random(9);
  for (const FormatSpec format : {kE4M3, kE5M2, kE3M4, kE2M3, kE3M2, kE2M1, kInt8}) {
    for (const int count : {1, 3, 8, 11}) {
      const ElementCast cast{format, Rounding::stochastic, Overflow::saturate, count};
      for (int i = 0; i < 60; ++i) {
        // From a quarter of the smallest number to the largest one.
        const int lowest = format.min_exponent() - format.mantissa_bits - 2;
        const int exponents = format.max_exponent() - lowest;
        const int exponent = lowest + static_cast<int>(random()) % exponents;
        const double x =
            std::ldexp(1.0 + std::ldexp(static_cast<double>(random() >> 9), -23), exponent);
        const double step =
            std::ldexp(1.0, std::max(exponent, format.min_exponent()) - format.mantissa_bits);
        const double whole = std::floor(x / step), fraction = x / step - whole;
        const auto bits = float_bits(static_cast<float>(i % 2 == 0 ? x : -x));
        std::uint32_t ups = 0;
        for (std::uint32_t word = 0; word < (1u << count); ++word) {
          const std::uint32_t noise = static_cast<std::uint32_t>(random()) << count;
          const double value = std::abs(decode(format, encode(cast, bits, word | noise)));
          REQUIRE((value == whole * step || value == (whole + 1.0) * step));
          ups += value > whole * step ? 1u : 0u;
        }
        REQUIRE(ups == static_cast<std::uint32_t>(std::floor(std::ldexp(fraction, count))));
      }
    }
  }
}

TEST_CASE("a value is rounded via another format to nearest even, and overflows to infinity") {
  std::mt19937 random(10);
  for (const FormatSpec via : {kFP16, kBF16, kTF32, FormatSpec{5, 6, 15}}) {
    for (int i = 0; i < 20000; ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      const std::uint32_t expected =
          decode_bits(via, encode(via, bits, Rounding::nearest, Overflow::special));
      REQUIRE(rounded_via(via, bits) == expected);
    }
  }
  CHECK(rounded_via(kFP16, float_bits(65519.0f)) == float_bits(65504.0f));
  CHECK(rounded_via(kFP16, float_bits(65520.0f)) == kF32Infinity);
  CHECK(rounded_via(kBF16, kF32MaxFinite) == kF32Infinity);
  CHECK(rounded_via(kBF16, 0xFF812345u) == kF32NaN);
  CHECK(rounded_via(kFP16, 0xFF812345u) == kF32NaN);
}

TEST_CASE("a few random bits round up with the probability that they can express") {
  const auto ups = [](FormatSpec format, float x, int count) {
    const std::uint32_t down = encode(format, float_bits(x), Rounding::toward_zero);
    int up = 0;
    for (std::uint32_t random = 0; random < (1u << count); ++random) {
      const std::uint32_t noise = 0xABC00000u;  // bits above `count` do not matter
      const std::uint32_t word = count < 20 ? random | noise : random;
      up += encode_few_random_bits(format, float_bits(x), word, count) != down ? 1 : 0;
    }
    return up;
  };
  // e2m1 has steps of 0.5 from 1 to 2 and below 1, where numbers are subnormal.
  for (const int eighth : {0, 1, 3, 4, 7}) {
    const float part = static_cast<float>(eighth) / 8.0f;
    CHECK(ups(kE2M1, 1.0f + 0.5f * part, 8) == 32 * eighth);
    CHECK(ups(kE2M1, 0.5f * part, 8) == 32 * eighth);
    CHECK(ups(kE5M2, 1.0f + 0.25f * part, 16) == 8192 * eighth);
    CHECK(ups(kE4M3, -(8.0f + part), 8) == 32 * eighth);
  }
  CHECK(ups(kE2M1, 1.0f + 0.5f / 512.0f, 8) == 0);  // less than 2^-8: never
  CHECK(ups(kE2M1, 1.0f + 0.5f / 512.0f, 16) == 128);
  CHECK(ups(kE2M1, 1.0f + 0.5f * 1.5f / 256.0f, 8) == 1);
  CHECK(encode_few_random_bits(kE4M3, float_bits(460.0f), 255u, 8) == 0x7Eu);
  CHECK(encode_few_random_bits(kE4M3, kF32NaN, 0u, 8) == 0x7Fu);
  CHECK(encode_few_random_bits(kE4M3, float_bits(-0.0f), 255u, 8) == 0x80u);
}
