#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/element_cast.hpp"
#include "emulation/numerics/nearest_codec.hpp"
#include "emulation/numerics/stochastic_codec.hpp"
#include "emulation/numerics/tree_sum.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "src/validate/codec.hpp"
#include "src/validate/conv_hashes.hpp"

using namespace fp8lab::numerics;

namespace {

constexpr std::uint32_t encode_value(FormatSpec format, float value,
                                     Overflow overflow = Overflow::saturate) {
  return encode(format, float_bits(value), Rounding::nearest, overflow);
}

// The limits of emulation/specification.md, "Formats and codes".
static_assert(max_finite(kE4M3) == 448.0f);
static_assert(max_finite(kE5M2) == 57344.0f);
static_assert(max_finite(kE3M4) == 30.0f);
static_assert(max_finite(kE2M3) == 7.5f);
static_assert(max_finite(kE3M2) == 28.0f);
static_assert(max_finite(kE2M1) == 6.0f);
static_assert(max_finite(kE8M0) == 0x1p127f);
static_assert(max_finite(kFP16) == 65504.0f);
static_assert(max_finite(kBF16) == 0x1.FEp127f);
static_assert(max_finite(kFP32) == 0x1.FFFFFEp127f);
static_assert(decode(kE4M3, 0x01) == 0x1p-9f && decode(kE4M3, 0x08) == 0x1p-6f);
static_assert(decode(kE5M2, 0x01) == 0x1p-16f && decode(kE5M2, 0x04) == 0x1p-14f);
static_assert(decode(kE8M0, 0) == 0x1p-127f && decode(kE8M0, 127) == 1.0f);
static_assert(decode_bits(kBF16, 1) == 0x00010000u);

// Overflow is decided after rounding: 464 is a tie and goes to the even code 0x7E.
static_assert(encode_value(kE4M3, 464.0f, Overflow::special) == 0x7E);
static_assert(encode_value(kE4M3, 0x1.D00002p8f, Overflow::special) == 0x7F);
static_assert(encode_value(kE4M3, -0x1.D00002p8f, Overflow::special) == 0xFF);
static_assert(encode_value(kE4M3, -1e30f) == 0xFE);
static_assert(encode_value(kE5M2, 61440.0f, Overflow::special) == 0x7C);
static_assert(encode_value(kE5M2, 0x1.DFFFFEp15f, Overflow::special) == 0x7B);
static_assert(encode_value(kE5M2, -61440.0f) == 0xFB);
static_assert(encode_value(kFP16, 65520.0f, Overflow::special) == 0x7C00);
static_assert(encode_value(kFP16, 65520.0f) == 0x7BFF);
static_assert(encode_value(kBF16, 0x1.FFFFFEp127f, Overflow::special) == 0x7F80);
static_assert(encode_value(kE2M1, -100.0f, Overflow::special) == 0xF);

// Signed zero, values that round to zero, subnormal ties.
static_assert(encode_value(kE4M3, -0.0f) == 0x80);
static_assert(encode_value(kE4M3, -0x1p-10f) == 0x80 && encode_value(kE4M3, -0x1.8p-10f) == 0x81);
static_assert(encode_value(kE4M3, 0x1.8p-9f) == 0x02);
static_assert(encode_value(kE4M3, 0x1p-149f) == 0x00);
static_assert(encode(kFP32, 0x80000001u) == 0x80000001u);

// NaN drops its sign; formats without NaN give the positive maximum.
static_assert(encode(kE4M3, 0xFFC00000u) == 0x7F && encode(kE5M2, 0xFF800001u) == 0x7F);
static_assert(encode(kE2M1, 0xFFC00000u) == 0x7 && encode(kE2M3, 0x7FC00000u) == 0x1F);
static_assert(encode(kBF16, 0xFFC00000u) == 0x7FFF && encode(kFP32, 0xFF812345u) == kF32NaN);
static_assert(decode_bits(kE4M3, 0xFF) == kF32NaN && decode_bits(kE5M2, 0xFE) == kF32NaN);
static_assert(decode_bits(kE5M2, 0xFC) == 0xFF800000u);

std::uint32_t recorded_conversion(std::uint32_t conversion, std::uint32_t bits) {
  constexpr Rounding kNearest = Rounding::nearest;
  constexpr Overflow kSpecial = Overflow::special;
  const auto relu = [](std::uint32_t code) { return (code & 0x80u) != 0 ? 0u : code; };
  switch (conversion) {
    case 0:
    case 4:
    case 6: return encode(kE4M3, bits);
    case 1:
    case 5: return encode(kE5M2, bits);
    case 2: return encode(kE4M3, bits, kNearest, kSpecial);
    case 3: return encode(kE5M2, bits, kNearest, kSpecial);
    case 7: return encode_e8m0(bits, false, Overflow::saturate);
    case 8: return encode_e8m0(bits, true, Overflow::saturate);
    case 9: return encode_e8m0(bits, false, kSpecial);
    case 10: return encode_e8m0(bits, true, kSpecial);
    case 11: return encode(kE2M1, bits);
    case 12: return encode(kE2M3, bits);
    case 13: return encode(kE3M2, bits);
    case 14: return encode(kBF16, bits, kNearest, kSpecial);
    case 15: return encode(kFP16, bits, kNearest, kSpecial);
    case 16: return relu(encode(kE4M3, bits));
    default: return relu(encode(kE5M2, bits));
  }
}

template <class T>
std::vector<T> read(std::ifstream& file, std::size_t count) {
  std::vector<T> values(count);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(count * sizeof(T)));
  REQUIRE(file);
  return values;
}

}  // namespace

TEST_CASE("encode gives the recorded outputs of all 18 conversions") {
  const std::string path = std::string(FP8LAB_TEST_DATA) + "/golden/conv_sample.bin";
  std::ifstream file(path, std::ios::binary);
  const auto header = read<std::uint32_t>(file, 4);
  REQUIRE(header[0] == 0x564E4F43u);  // "CONV"
  REQUIRE(header[1] == 18);
  const auto inputs = read<std::uint32_t>(file, header[2]);
  for (std::uint32_t conversion = 0; conversion < header[1]; ++conversion) {
    const auto outputs = read<std::uint16_t>(file, inputs.size());
    std::size_t mismatches = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (recorded_conversion(conversion, inputs[i]) != outputs[i]) ++mismatches;
    }
    INFO("conversion " << conversion);
    CHECK(mismatches == 0);
  }
}

TEST_CASE("fast conversions equal the general one on the recorded inputs") {
  std::ifstream file(std::string(FP8LAB_TEST_DATA) + "/golden/conv_sample.bin", std::ios::binary);
  const auto header = read<std::uint32_t>(file, 4);
  for (const std::uint32_t bits : read<std::uint32_t>(file, header[2])) {
    const float value = bits_float(bits);
    REQUIRE(to_e4m3(value) == encode(kE4M3, bits));
    REQUIRE(to_e5m2(value) == encode(kE5M2, bits));
    REQUIRE(to_bf16(value) == encode(kBF16, bits, Rounding::nearest, Overflow::special));
  }
}

TEST_CASE("the codec of few operations equals the general one for every format that it takes") {
  // Around every value and every middle between two values, at every exponent, and with each of the
  // upper half of the bits.
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      inputs.push_back(upper << 16 | lower);
    }
  }
  std::vector<FormatSpec> formats;
  for (const NamedFormat& named : kNamedFormats) formats.push_back(named.format);
  for (const char* const name :
       {"e1m2", "e2m0f", "e3m0", "e5m0f", "e4m3fnb11", "e6m1", "e7m0f", "e8m0f", "e2m5f", "int3",
        "int5", "binary8p1se", "binary8p4sf", "binary6p3sf", "e4m3b20", "e3m4ieee"}) {
    const auto format = fp8lab::format_by_name(name);
    if (format) formats.push_back(*format);
  }
  std::size_t taken = 0, drawn = 0;
  for (const FormatSpec& format : formats) {
    INFO(fp8lab::format_name(format));
    for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
      std::size_t mismatches = 0;
      if (NearestCodec::applies(format)) {
        ++taken;
        const NearestCodec codec(format, overflow);
        for (const std::uint32_t bits : inputs) {
          if (codec.encode(bits_float(bits)) != encode(format, bits, Rounding::nearest, overflow))
            ++mismatches;
        }
      }
      if (StochasticCodec::applies(format)) {
        ++drawn;
        for (const int count : {0, 1, 8, 16, 23, 32}) {
          const StochasticCodec codec(format, overflow, count);
          const ElementCast cast{format, Rounding::stochastic, overflow, count};
          std::uint32_t random = 0;
          for (const std::uint32_t bits : inputs) {
            random = random * 1664525u + 1013904223u;
            for (const std::uint32_t word : {0u, ~0u, random, bits, 0u - (bits << 8)}) {
              if (codec.encode(bits_float(bits), word) != encode(cast, bits, word)) ++mismatches;
            }
          }
        }
      }
      CHECK(mismatches == 0);
    }
  }
  CHECK(taken > 40);
  CHECK(drawn > 40);
  CHECK_FALSE(NearestCodec::applies(kE8M0));
  CHECK_FALSE(NearestCodec::applies(kLns8));
  CHECK_FALSE(NearestCodec::applies(kBF16));
}

TEST_CASE("every code of every format survives decode and encode") {
  for (const NamedFormat& named : kNamedFormats) {
    if (named.format.bits() > 16 || named.format == kLogFmt8) continue;
    INFO(named.name);
    CHECK(fp8lab::round_trip_mismatches(named.format) == 0);
  }
}

TEST_CASE("decode follows the definition of the format") {
  for (const NamedFormat& named : kNamedFormats) {
    const FormatSpec format = named.format;
    if (format.bits() > 16 || format.encoding >= Encoding::logarithmic) continue;
    INFO(named.name);
    for (std::uint32_t code = 0; code <= format.max_finite_code(); ++code) {
      const int field = static_cast<int>(code >> format.mantissa_bits);
      const std::uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1u);
      const bool subnormal = field == 0 && format.has_subnormals;
      const double fraction = std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits);
      const int exponent = (subnormal ? 1 : field) - format.bias;
      const double value = std::ldexp((subnormal ? 0.0 : 1.0) + fraction, exponent);
      REQUIRE(static_cast<double>(decode(format, code)) == value);
      if (format.encoding == Encoding::twos_complement) {
        REQUIRE(decode(format, 0u - code) == -decode(format, code));
      } else if (code == 0 && format.specials == SpecialValues::unsigned_zero) {
        REQUIRE(decode_bits(format, format.sign_mask()) == kF32NaN);
      } else if (format.has_sign) {
        REQUIRE(float_bits(decode(format, code | format.sign_mask())) ==
                (float_bits(decode(format, code)) | 0x80000000u));
      }
    }
  }
}

TEST_CASE("from_bf16 and to_bf16 are inverse") {
  for (std::uint32_t code = 0; code < 0x10000u; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const bool is_nan = (code & 0x7FFFu) > 0x7F80u;
    REQUIRE(to_bf16(from_bf16(bits)) == (is_nan ? 0x7FFF : code));
    if (!is_nan) REQUIRE(float_bits(from_bf16(bits)) == decode_bits(kBF16, code));
  }
}

TEST_CASE("e8m0 rounds magnitudes in both directions") {
  const auto down = [](float x) { return encode_e8m0(float_bits(x), false, Overflow::saturate); };
  const auto up = [](float x) { return encode_e8m0(float_bits(x), true, Overflow::saturate); };
  CHECK(down(1.0f) == 127);
  CHECK(up(1.0f) == 127);
  CHECK(down(-1.5f) == 127);
  CHECK(up(-1.5f) == 128);
  CHECK(up(0x1p-127f) == 0);
  CHECK(up(0x1.000004p-127f) == 1);
  CHECK(down(0.0f) == 0);
  CHECK(up(0x1.8p127f) == 0xFE);
  CHECK(encode_e8m0(float_bits(0x1.8p127f), true, Overflow::special) == 0xFF);
  CHECK(encode_e8m0(0x7F800000u, false, Overflow::saturate) == 0xFE);
  CHECK(encode_e8m0(0xFFC00000u, false, Overflow::saturate) == 0xFF);
}

TEST_CASE("the hash table in the sources is the recorded file") {
  std::ifstream file(std::string(FP8LAB_TEST_DATA) + "/golden/conv_hash.bin", std::ios::binary);
  for (std::size_t conversion = 0; conversion < 4; ++conversion) {
    const auto hashes = read<std::uint64_t>(file, 256);
    for (std::size_t chunk = 0; chunk < hashes.size(); ++chunk) {
      REQUIRE(hashes[chunk] == fp8lab::kConversionHashes[conversion][chunk]);
    }
  }
}

TEST_CASE("canonical_nan replaces NaN only") {
  CHECK(float_bits(canonical_nan(bits_float(0xFFC00000u))) == kF32NaN);
  CHECK(float_bits(canonical_nan(bits_float(0x7F800000u))) == 0x7F800000u);
  CHECK(float_bits(canonical_nan(-0.0f)) == 0x80000000u);
}

namespace {

// tree_sum by its definition, on a vector.
template <class T>
T defined_sum(const std::vector<T>& x) {
  if (x.size() > 4096) {
    std::vector<T> sums;
    for (std::size_t first = 0; first < x.size(); first += 4096) {
      const std::size_t last = std::min(x.size(), first + 4096);
      sums.push_back(defined_sum(std::vector<T>(x.begin() + static_cast<std::ptrdiff_t>(first),
                                                x.begin() + static_cast<std::ptrdiff_t>(last))));
    }
    return defined_sum(sums);
  }
  std::array<T, 32> lane{};
  for (std::size_t i = 0; i < x.size(); ++i) lane[i % 32] += x[i];
  for (std::size_t span = 16; span > 0; span /= 2) {
    for (std::size_t l = 0; l < span; ++l) lane[l] += lane[l + span];
  }
  return lane[0];
}

// Both signs and sixteen binades, so that every addition rounds and the order shows.
template <class T>
std::vector<T> rough_values(std::size_t count) {
  std::vector<T> values(count);
  std::uint32_t state = 12345;
  for (T& value : values) {
    state = state * 1664525u + 1013904223u;
    const double magnitude = std::ldexp(1.0 + 0x1p-23 * (state & 0x7FFFFFu), state >> 23 & 15u);
    value = static_cast<T>((state >> 31 != 0 ? -magnitude : magnitude) / 3.0);
  }
  return values;
}

}  // namespace

TEST_CASE("tree_sum follows its definition bit for bit") {
  for (const std::size_t n : {0, 1, 5, 31, 32, 33, 4095, 4096, 4097, 8192, 150001}) {
    const auto x = rough_values<float>(n);
    const auto y = rough_values<double>(n);
    const auto length = static_cast<std::int64_t>(n);
    const auto load_x = [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; };
    const auto load_y = [&](std::int64_t i) { return y[static_cast<std::size_t>(i)]; };
    CHECK(float_bits(tree_sum(length, load_x)) == float_bits(defined_sum(x)));
    CHECK(double_bits(tree_sum<double>(length, load_y)) == double_bits(defined_sum(y)));
  }
}

TEST_CASE("tree_sum adds chunk sums lane by lane, and groups of 4096 chunks") {
  constexpr std::int64_t kChunk = 4096;
  // 2^-24 is lost beside 1, but two of them in one lane or one group survive.
  const auto lanes = [](std::int64_t i) {
    return i == 0 ? 1.0f : i == kChunk || i == 33 * kChunk ? 0x1p-24f : 0.0f;
  };
  CHECK(tree_sum(64 * kChunk, lanes) == 1.0f + 0x1p-23f);
  const auto groups = [](std::int64_t i) {
    return i == 0 ? 1.0f : i == kChunk * kChunk || i == (kChunk + 1) * kChunk ? 0x1p-24f : 0.0f;
  };
  CHECK(tree_sum(kChunk * kChunk + 2 * kChunk, groups) == 1.0f + 0x1p-23f);
  CHECK(float_bits(tree_sum(40, [](std::int64_t) { return -0.0f; })) == 0u);
}
