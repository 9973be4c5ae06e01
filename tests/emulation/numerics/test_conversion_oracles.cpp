// Every format of at most 8 bits against two independent implementations: ml_dtypes, recorded in
// ml_dtypes.txt by make_ml_dtypes.py, and the host conversions of the CUDA toolkit's headers.
#include <catch2/catch.hpp>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#if defined(FP8LAB_HAVE_CUDA_FP4_HEADER)
// The toolkit's headers are not written for these warnings.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#pragma GCC diagnostic pop
#endif

#include "emulation/numerics/codec.hpp"
#include "emulation/spec/quant_spec.hpp"

using namespace fp8lab;
using namespace fp8lab::numerics;

namespace {

constexpr std::uint32_t kSign = 0x80000000u;

bool is_nan(std::uint32_t bits) { return (bits & ~kSign) > kF32Infinity; }

/// What ml_dtypes does otherwise than CUDA, whose behaviour is ours.
struct Policy {
  const char* format;
  Overflow overflow;       ///< which of our policies its only one is
  bool nan_keeps_sign;     ///< ours: NaN is positive
  bool nan_is_minus_zero;  ///< no NaN in the format: NaN becomes the zero of the other sign; ours:
                           ///< the largest number
};

constexpr Policy kPolicies[] = {
    {"e4m3fn", Overflow::special, true, false},    {"e4m3_240", Overflow::special, true, false},
    {"e5m2", Overflow::special, true, false},      {"e3m4ieee", Overflow::special, true, false},
    {"e2m3", Overflow::saturate, false, true},     {"e3m2", Overflow::saturate, false, true},
    {"e2m1", Overflow::saturate, false, true},     {"e4m3fnuz", Overflow::special, false, false},
    {"e5m2fnuz", Overflow::special, false, false},
};

/// The code that ml_dtypes gives to a NaN, of which the formats with infinity have several.
std::uint32_t ml_dtypes_nan(const Policy& policy, FormatSpec format, bool negative) {
  const std::uint32_t sign = format.sign_mask();
  if (policy.nan_is_minus_zero) return negative ? 0u : sign;
  const std::uint32_t quiet = format.specials == SpecialValues::ieee
                                  ? format.infinity_code() | 1u << (format.mantissa_bits - 1)
                                  : format.nan_code();
  return policy.nan_keeps_sign && negative ? quiet | sign : quiet;
}

/// Our code under the policy.
std::uint32_t translated(const Policy& policy, FormatSpec format, std::uint32_t bits) {
  if (is_nan(bits)) return ml_dtypes_nan(policy, format, (bits & kSign) != 0);
  // A number or infinity that overflows to the NaN of e4m3fn keeps its sign in both.
  return encode(format, bits, Rounding::nearest, policy.overflow);
}

/// The records of one format.
struct Recorded {
  std::vector<std::uint32_t> decoded;  ///< FP32 bits by code
  std::vector<std::uint32_t> bf16;     ///< code by BF16 bits
  struct Midpoint {
    std::uint32_t bits;
    std::uint32_t codes[6];
  };
  std::vector<Midpoint> midpoints;
};

void read_line(const std::string& line, Recorded& recorded) {
  std::istringstream words(line);
  std::string key, word;
  words >> key >> std::hex;
  if (key == "decode") {
    for (std::uint32_t value = 0; words >> value;) recorded.decoded.push_back(value);
  } else if (key == "mid") {
    Recorded::Midpoint midpoint{};
    words >> midpoint.bits;
    for (std::uint32_t& code : midpoint.codes) words >> code;
    REQUIRE(words);
    recorded.midpoints.push_back(midpoint);
  } else if (key == "runs") {
    while (words >> word) {
      const std::size_t colon = word.find(':');
      const std::size_t first = std::stoul(word.substr(0, colon), nullptr, 16);
      if (first > 0) recorded.bf16.resize(first, recorded.bf16.back());
      recorded.bf16.push_back(
          static_cast<std::uint32_t>(std::stoul(word.substr(colon + 1), nullptr, 16)));
    }
    recorded.bf16.resize(0x10000, recorded.bf16.back());
  }
}

Recorded recorded_for(const std::string& format) {
  std::ifstream file(std::string(FP8LAB_TEST_DATA) + "/golden/ml_dtypes.txt");
  Recorded recorded;
  bool wanted = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("format ", 0) == 0) wanted = line == "format " + format;
    if (wanted) read_line(line, recorded);
  }
  REQUIRE(recorded.bf16.size() == 0x10000);
  return recorded;
}

}  // namespace

TEST_CASE("every code and every BF16 number convert as in ml_dtypes") {
  for (const Policy& policy : kPolicies) {
    INFO(policy.format);
    const FormatSpec format = *format_by_name(policy.format);
    const Recorded recorded = recorded_for(policy.format);
    REQUIRE(recorded.decoded.size() == std::size_t{1} << format.bits());
    for (std::uint32_t code = 0; code < recorded.decoded.size(); ++code) {
      const std::uint32_t expected = recorded.decoded[code];
      const std::uint32_t bits = decode_bits(format, code);
      REQUIRE((is_nan(expected) ? bits == kF32NaN : bits == expected));
    }
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
      REQUIRE(translated(policy, format, bits << 16) == recorded.bf16[bits]);
    }
    for (const Recorded::Midpoint& midpoint : recorded.midpoints) {
      for (std::uint32_t i = 0; i < 6; ++i) {
        const std::uint32_t bits = (midpoint.bits + i % 3 - 1) | (i < 3 ? 0u : kSign);
        REQUIRE(translated(policy, format, bits) == midpoint.codes[i]);
      }
    }
    CHECK(recorded.midpoints.size() == format.max_finite_code());
  }
}

TEST_CASE("e8m0 rounds to nearest as in ml_dtypes, away from ties and from the lowest binade") {
  // ml_dtypes: zero and negative numbers are NaN, ties go up, and everything between 2^-127 and
  // 1.5 * 2^-126 is 2^-126. Ours: code 0, magnitudes, ties to even, nearest.
  const Recorded recorded = recorded_for("e8m0");
  for (std::uint32_t code = 0; code < 0xFFu; ++code) {
    REQUIRE(decode_bits(kE8M0, code) == recorded.decoded[code]);
  }
  CHECK(is_nan(recorded.decoded[0xFF]));
  std::uint32_t compared = 0;
  for (std::uint32_t bits = 0x80u; bits <= 0x7F80u; ++bits) {
    const bool tie = (bits & 0x7Fu) == 0x40u;
    const std::uint32_t code = encode(kE8M0, bits << 16, Rounding::nearest, Overflow::special);
    if (!tie) REQUIRE(code == recorded.bf16[bits]);
    if (tie) REQUIRE((code == recorded.bf16[bits] || code + 1 == recorded.bf16[bits]));
    ++compared;
  }
  CHECK(compared == 0x7F01u);
}

#if defined(FP8LAB_HAVE_CUDA_FP4_HEADER)
namespace {

/// All BF16 numbers, and the FP32 numbers around every midpoint.
std::vector<std::uint32_t> inputs_for(FormatSpec format) {
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) inputs.push_back(bits << 16);
  for (std::uint32_t code = 0; code < format.max_finite_code(); ++code) {
    const float middle = (decode(format, code) + decode(format, code + 1)) / 2;
    for (std::uint32_t i = 0; i < 3; ++i) {
      inputs.push_back(float_bits(middle) + i - 1);
      inputs.push_back((float_bits(middle) + i - 1) | kSign);
    }
  }
  return inputs;
}

template <class Convert>
void compare(FormatSpec format, Overflow overflow, const Convert& convert) {
  for (const std::uint32_t bits : inputs_for(format)) {
    const std::uint32_t expected = convert(bits_float(bits));
    REQUIRE(encode(format, bits, Rounding::nearest, overflow) == expected);
  }
}

/// The half that the toolkit decodes to, as FP32 bits; NaN canonical.
template <class Raw>
std::uint32_t from_half(const Raw& half) {
  return decode_bits(kFP16, half.x);
}

}  // namespace

TEST_CASE("narrow formats convert as the host functions of the CUDA toolkit") {
  for (const bool saturates : {true, false}) {
    const Overflow overflow = saturates ? Overflow::saturate : Overflow::special;
    const auto policy = saturates ? __NV_SATFINITE : __NV_NOSAT;
    compare(kE4M3, overflow, [&](float x) { return __nv_cvt_float_to_fp8(x, policy, __NV_E4M3); });
    compare(kE5M2, overflow, [&](float x) { return __nv_cvt_float_to_fp8(x, policy, __NV_E5M2); });
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
      const float x = bits_float(bits << 16);
      // The header takes negative numbers for themselves as we do; both give the magnitude.
      REQUIRE(encode_e8m0(bits << 16, false, overflow) ==
              __nv_cvt_float_to_e8m0(x, policy, cudaRoundZero));
      REQUIRE(encode_e8m0(bits << 16, true, overflow) ==
              __nv_cvt_float_to_e8m0(x, policy, cudaRoundPosInf));
    }
  }
  compare(kE2M3, Overflow::saturate,
          [](float x) { return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest); });
  compare(kE3M2, Overflow::saturate,
          [](float x) { return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest); });
  compare(kE2M1, Overflow::saturate,
          [](float x) { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); });
}

TEST_CASE("every code decodes as by the host functions of the CUDA toolkit") {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    CHECK(decode_bits(kE4M3, code) == from_half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
    CHECK(decode_bits(kE5M2, code) == from_half(__nv_cvt_fp8_to_halfraw(byte, __NV_E5M2)));
    const std::uint32_t e8m0 = decode_bits(kBF16, __nv_cvt_e8m0_to_bf16raw(byte).x);
    CHECK(decode_bits(kE8M0, code) == e8m0);
    if (code >= 64) continue;
    CHECK(decode_bits(kE2M3, code) == from_half(__nv_cvt_fp6_to_halfraw(byte, __NV_E2M3)));
    CHECK(decode_bits(kE3M2, code) == from_half(__nv_cvt_fp6_to_halfraw(byte, __NV_E3M2)));
    if (code >= 16) continue;
    CHECK(decode_bits(kE2M1, code) == from_half(__nv_cvt_fp4_to_halfraw(byte, __NV_E2M1)));
  }
}
#else
TEST_CASE("narrow formats convert as the host functions of the CUDA toolkit") {
  WARN("skipped: the CUDA toolkit's headers were not found when this test was built");
}
#endif
