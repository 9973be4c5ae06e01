// The formats of IEEE P3109: their names, hand-worked codes, and the digests of the published
// tables.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/mma.hpp"
#include "emulation/spec/quant_rules.hpp"
#include "emulation/spec/quant_spec.hpp"
#include "src/io/sha256.hpp"

using namespace fp8lab;            // NOLINT: the subject of every line below
using namespace fp8lab::numerics;  // NOLINT

namespace {

/// As tests/golden/make_p3109.py writes it.
std::string digest(const FormatSpec& format) {
  std::string values;
  for (std::uint32_t code = 0; code < 1u << format.bits(); ++code) {
    const std::uint32_t bits = decode_bits(format, code);
    char bytes[4];
    std::memcpy(bytes, &bits, sizeof bits);
    values.append(bytes, sizeof bits);
  }
  return sha256(values).substr(0, 16);
}

}  // namespace

TEST_CASE("every code of every P3109 format has the value of the published tables") {
  std::ifstream file(std::string(FP8LAB_TEST_DATA) + "/golden/p3109.txt");
  std::string name, expected;
  int formats = 0;
  while (file >> name >> expected) {
    INFO(name);
    const std::optional<FormatSpec> format = format_by_name(name);
    REQUIRE(format);
    CHECK(digest(*format) == expected);
    CHECK(format_by_name(format_name(*format)) == *format);
    ++formats;
  }
  CHECK(formats == 376);
  FormatSpec biased = *format_by_name("binary8p4se");
  ++biased.bias;
  CHECK(digest(biased) != digest(*format_by_name("binary8p4se")));
}

TEST_CASE("binary8p4se: infinities, one NaN, no -0") {
  const FormatSpec format = *format_by_name("binary8p4se");
  CHECK(format_name(format) == "binary8p4se");
  CHECK(max_finite(format) == 224.0f);
  CHECK(decode(format, 1) == 0x1p-10f);
  CHECK(decode(format, 0x7F) == std::numeric_limits<float>::infinity());
  CHECK(decode(format, 0xFF) == -std::numeric_limits<float>::infinity());
  CHECK(decode_bits(format, 0x80) == kF32NaN);
  CHECK(unpack(format, 0xFF).infinite);
  CHECK(unpack(format, 0x80).nan);
  const auto code = [&](float x, Overflow overflow) {
    return encode(format, float_bits(x), Rounding::nearest, overflow);
  };
  for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
    const bool saturates = overflow == Overflow::saturate;
    CHECK(code(-0.0f, overflow) == 0x00);
    CHECK(code(-0x1p-12f, overflow) == 0x00);
    CHECK(code(232.0f, overflow) == 0x7E);  // half way to 240, to the even code
    CHECK(code(-233.0f, overflow) == (saturates ? 0xFE : 0xFF));
    CHECK(code(std::numeric_limits<float>::infinity(), overflow) == (saturates ? 0x7E : 0x7F));
    CHECK(code(-std::numeric_limits<float>::quiet_NaN(), overflow) == 0x80);
  }
  CHECK(holds_values(kFP16, format));
  CHECK_FALSE(holds_values(kE4M3, format));  // no infinity
  QuantSpec spec;
  spec.format = format;
  CHECK_FALSE(refuse_quantizer(spec).has_value());
  // Midpoints go to the even code.
  for (std::uint32_t low = 0; low < format.max_finite_code(); ++low) {
    const float middle = (decode(format, low) + decode(format, low + 1)) / 2;
    CHECK(code(middle, Overflow::special) == low + low % 2);
  }
}

TEST_CASE("finite and unsigned P3109 formats") {
  CHECK(format_by_name("binary8p4sf") == kE4M3Fnuz);
  CHECK(format_by_name("binary8p3sf") == kE5M2Fnuz);
  CHECK(format_name(*format_by_name("binary8p4sf")) == "e4m3fnuz");
  const FormatSpec extended = *format_by_name("binary8p1ue");
  CHECK(decode(extended, 1) == 0x1p-127f);
  CHECK(decode(extended, 0xFE) == std::numeric_limits<float>::infinity());
  CHECK(decode_bits(extended, 0xFF) == kF32NaN);
  const FormatSpec finite = *format_by_name("binary8p1uf");
  CHECK(decode(finite, 0xFE) == 0x1p126f);
  CHECK(decode_bits(finite, 0xFF) == kF32NaN);
  QuantSpec spec;
  spec.format = finite;
  CHECK(refuse_quantizer(spec)->accepted.find("signed formats") != std::string::npos);
  for (const char* name : {"binary", "binary8", "binary8p4", "binary8p4s", "binary8p4e",
                           "binary8p8se", "binary8p9ue", "binary2p1se", "binary17p9se",
                           "binary16p4se", "binary8p0se", "binary8p4see", "binary8p4sx"}) {
    INFO(name);
    CHECK_FALSE(format_by_name(name).has_value());
  }
}
