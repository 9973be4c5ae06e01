#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/mma.hpp"
#include "emulation/numerics/tile_logarithm.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/cpu/quantize/quantize_reference.hpp"

using namespace fp8lab;
using namespace fp8lab::numerics;

namespace {

constexpr FormatSpec kLogarithms[] = {
    kLns8,
    {7, 0, 0, SpecialValues::none, true, false, Encoding::logarithmic},
    {1, 6, 0, SpecialValues::none, true, false, Encoding::logarithmic},
    {3, 2, 0, SpecialValues::none, true, false, Encoding::logarithmic},
};

/// Every finite BF16 number, and around each midpoint of the format the FP32 neighbours.
std::vector<float> inputs_for(FormatSpec format) {
  std::vector<float> values;
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = bits_float(bits << 16);
    if (std::isfinite(value)) values.push_back(value);
  }
  for (std::uint32_t code = 0; code < format.max_finite_code(); ++code) {
    const float middle = (decode(format, code) + decode(format, code + 1)) / 2;
    const std::uint32_t bits = float_bits(middle);
    for (const std::uint32_t near : {bits - 1u, bits, bits + 1u}) {
      if (near > bits + 1u) continue;
      values.push_back(bits_float(near));
      values.push_back(-bits_float(near));
    }
  }
  return values;
}

}  // namespace

TEST_CASE("integers and fixed point round like nearbyint and never reach the lowest code") {
  struct Case {
    FormatSpec format;
    double step, largest;
  };
  const Case cases[] = {{kInt8, 1.0, 127.0}, {kInt4, 1.0, 7.0}, {kMxInt8, 1.0 / 64, 127.0}};
  for (const Case& c : cases) {
    CHECK(static_cast<double>(max_finite(c.format)) == c.largest * c.step);
    for (const float x : inputs_for(c.format)) {
      const double steps = std::nearbyint(static_cast<double>(x) / c.step);
      const double expected = std::clamp(steps, -c.largest, c.largest) * c.step;
      const std::uint32_t code = encode(c.format, float_bits(x));
      REQUIRE(static_cast<double>(decode(c.format, code)) == expected);
      REQUIRE(code >> c.format.bits() == 0u);
      if (c.format.encoding == Encoding::twos_complement) REQUIRE(code != c.format.sign_mask());
    }
    CHECK(encode(c.format, kF32Infinity | 0x80000000u) ==
          encode(c.format, float_bits(-max_finite(c.format))));
    CHECK(encode(c.format, kF32NaN) == c.format.max_finite_code());
  }
  CHECK(encode(kInt8, float_bits(-3.0f)) == 0xFDu);
  CHECK(encode(kInt4, float_bits(-7.0f)) == 0x9u);
  CHECK(encode(kInt8, float_bits(-0.0f)) == 0u);
  CHECK(decode(kInt8, 0x80u) == -128.0f);  // readable, though never written
  CHECK(encode(kMxInt8, float_bits(-0.25f)) == 0x90u);
}

TEST_CASE("the reserved codes and the bias of e3m4 are choices") {
  CHECK(max_finite(FormatSpec{3, 4, 3, SpecialValues::ieee}) == 15.5f);
  CHECK(max_finite(kE3M4) == 30.0f);
  CHECK(max_finite(FormatSpec{3, 4, 3, SpecialValues::none}) == 31.0f);
  CHECK(max_finite(FormatSpec{3, 4, 4, SpecialValues::none}) == 15.5f);  // unit scaling
  CHECK(decode(FormatSpec{3, 4, 4, SpecialValues::none}, 1) == 0x1p-7f);
  CHECK(max_finite(kE4M3Ieee) == 240.0f);
  CHECK(max_finite(FormatSpec{4, 3, 11, SpecialValues::ieee}) == 15.0f);  // Gaudi2's biases
  CHECK(max_finite(FormatSpec{4, 3, 3, SpecialValues::ieee}) == 3840.0f);
}

TEST_CASE("a format without -0 spends its code on NaN") {
  constexpr FormatSpec kFormat{4, 3, 8, SpecialValues::unsigned_zero};
  static_assert(kFormat.max_finite_code() == 0x7Fu && kFormat.nan_code() == 0x80u);
  CHECK(max_finite(kFormat) == 240.0f);
  const float tiny = 0x1p-12f;  // a quarter of the smallest
  for (const Rounding rounding : {Rounding::nearest, Rounding::ties_down, Rounding::ties_positive,
                                  Rounding::toward_zero, Rounding::stochastic}) {
    for (const Overflow overflow : {Overflow::saturate, Overflow::special}) {
      const auto code = [&](float x) { return encode(kFormat, float_bits(x), rounding, overflow); };
      const bool saturates = overflow == Overflow::saturate;
      CHECK(code(-0.0f) == 0u);
      CHECK(code(-tiny) == 0u);
      CHECK(code(-0x1p-10f) == 0x81u);
      CHECK(code(-240.0f) == 0xFFu);
      CHECK(code(-1e6f) == (saturates ? 0xFFu : 0x80u));
      CHECK(code(1e6f) == (saturates ? 0x7Fu : 0x80u));
      CHECK(code(std::numeric_limits<float>::infinity()) == (saturates ? 0x7Fu : 0x80u));
      CHECK(code(-std::numeric_limits<float>::quiet_NaN()) == 0x80u);
    }
  }
  CHECK(decode_bits(kFormat, 0x80u) == kF32NaN);
  CHECK(unpack(kFormat, 0x80u).nan);
  CHECK_FALSE(unpack(kFormat, 0xFFu).nan);
  CHECK(unpack(kFormat, 0x00u).significand == 0u);
  CHECK(holds_values(kBF16, kFormat));
  CHECK_FALSE(holds_values(FormatSpec{5, 3, 16, SpecialValues::unsigned_zero}, kE4M3));  // its -0
}

TEST_CASE("ties of e2m1 under the three nearest rules") {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const float below[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f};
  const float above[] = {0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float even[] = {0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f};
  const auto rounded = [](float x, Rounding rounding) {
    return decode(kE2M1, encode(kE2M1, float_bits(x), rounding));
  };
  for (int i = 0; i < 7; ++i) {
    const float x = ties[i];
    CHECK(rounded(x, Rounding::nearest) == even[i]);
    CHECK(rounded(-x, Rounding::nearest) == -even[i]);
    CHECK(rounded(x, Rounding::ties_down) == below[i]);
    CHECK(rounded(-x, Rounding::ties_down) == -below[i]);
    CHECK(rounded(x, Rounding::ties_positive) == above[i]);
    CHECK(rounded(-x, Rounding::ties_positive) == -below[i]);
  }
}

TEST_CASE("the nearest rules differ at ties alone, in every narrow format") {
  for (const NamedFormat& named : kNamedFormats) {
    const FormatSpec format = named.format;
    if (format.bits() > 8 || !format.has_subnormals || format == kLogFmt8) continue;
    INFO(named.name);
    for (std::uint32_t code = 0; code < format.max_finite_code(); ++code) {
      const float lo = decode(format, code), hi = decode(format, code + 1);
      const std::uint32_t tie = float_bits((lo + hi) / 2);
      for (const Rounding rounding :
           {Rounding::nearest, Rounding::ties_down, Rounding::ties_positive}) {
        const auto at = [&](std::uint32_t bits) {
          return decode(format, encode(format, bits, rounding));
        };
        REQUIRE(at(tie - 1) == lo);
        REQUIRE(at(tie + 1) == hi);
        REQUIRE(at((tie - 1) | 0x80000000u) == -lo);
        REQUIRE(at((tie + 1) | 0x80000000u) == -hi);
      }
      REQUIRE(decode(format, encode(format, tie, Rounding::ties_down)) == lo);
      REQUIRE(decode(format, encode(format, tie, Rounding::ties_positive)) == hi);
      REQUIRE(decode(format, encode(format, tie | 0x80000000u, Rounding::ties_positive)) == -lo);
      const std::uint32_t even = encode(format, tie);
      REQUIRE(even == (code % 2 == 0 ? code : code + 1));
    }
  }
}

TEST_CASE("logarithmic codes are the rounded powers") {
  for (const FormatSpec format : kLogarithms) {
    const long double steps = 1 << format.mantissa_bits;
    CHECK(decode(format, 0) == 0.0f);
    for (std::uint32_t k = 1; k <= format.max_finite_code(); ++k) {
      const float power = static_cast<float>(std::exp2(static_cast<long double>(k) / steps));
      REQUIRE(decode(format, k) == from_bf16(to_bf16(power)));
      REQUIRE(decode(format, k) > decode(format, k - 1));
      REQUIRE(decode(format, k | format.sign_mask()) == -decode(format, k));
    }
  }
  CHECK(max_finite(kLns8) == 60160.0f);
}

TEST_CASE("logarithmic codes are nearest in the logarithm") {
  for (const FormatSpec format : kLogarithms) {
    const long double steps = 1 << format.mantissa_bits;
    const auto largest = static_cast<long double>(format.max_finite_code());
    std::vector<float> values = inputs_for(format);
    for (std::uint32_t k = 0; k < format.max_finite_code(); ++k) {
      // Where the code changes, within a unit of the last place.
      const auto edge = static_cast<float>(std::exp2((static_cast<long double>(k) + 0.5L) / steps));
      for (std::uint32_t i = 0; i < 5; ++i) values.push_back(bits_float(float_bits(edge) + i - 2u));
    }
    for (const float x : values) {
      const std::uint32_t code = encode(format, float_bits(x));
      if (x == 0.0f) {
        REQUIRE(code == (std::signbit(x) ? format.sign_mask() : 0u));
        continue;
      }
      const long double k = std::round(steps * std::log2(std::fabs(static_cast<long double>(x))));
      REQUIRE(static_cast<long double>(code & format.magnitude_mask()) ==
              std::clamp(k, 1.0L, largest));
      REQUIRE(((code & format.sign_mask()) != 0) == (x < 0.0f));
    }
    CHECK(encode(format, kF32Infinity) == format.max_finite_code());
    CHECK(encode(format, kF32NaN) == format.max_finite_code());
  }
}

TEST_CASE("logarithmic codes toward zero and at random") {
  for (const FormatSpec format : kLogarithms) {
    for (std::uint32_t k = 1; k < format.max_finite_code(); ++k) {
      const float lo = decode(format, k), hi = decode(format, k + 1);
      const float x = bits_float((float_bits(lo) + float_bits(hi)) / 2);
      const std::uint32_t bits = float_bits(x);
      REQUIRE(encode(format, bits, Rounding::toward_zero) == k);
      REQUIRE(encode(format, float_bits(lo), Rounding::toward_zero) == k);
      REQUIRE(encode(format, float_bits(hi) - 1u, Rounding::toward_zero) == k);
      const double share = static_cast<double>(x - lo) / static_cast<double>(hi - lo);
      const auto edge = static_cast<std::uint32_t>(share * 0x1p32);
      constexpr auto kSaturate = Overflow::saturate;
      REQUIRE(encode(format, bits, Rounding::stochastic, kSaturate, edge - 2u) == k + 1);
      REQUIRE(encode(format, bits, Rounding::stochastic, kSaturate, edge + 2u) == k);
      REQUIRE(encode(format, float_bits(lo), Rounding::stochastic, kSaturate, 0u) == k);
    }
    CHECK(encode(format, float_bits(0x1p-140f), Rounding::toward_zero) == 1u);
  }
}

TEST_CASE("every narrow format goes through quantize, dequantize and statistics") {
  for (const char* name : {"e4m3_240", "e3m4", "e3m4ieee", "e3m4fb4", "e4m3fnuz", "e2m1fnuz",
                           "int8", "int4", "int5", "mxint8", "lns8", "lns8g16", "e2m1"}) {
    for (const Rounding rounding :
         {Rounding::nearest, Rounding::ties_down, Rounding::ties_positive, Rounding::stochastic}) {
      for (const bool transpose : {false, true}) {
        CAPTURE(name, static_cast<int>(rounding), transpose);
        QuantSpec spec;
        spec.format = *format_by_name(name);
        spec.tile = {1, 16};
        spec.scale_source = ScaleSource::current;
        spec.rounding = rounding;
        test::Matrix source(DType::bf16, 37, 45);
        test::fill_wide(source, 5);
        const RandomKey key{1, 2, 3, 0};
        test::Operand operand(spec, transpose ? 45 : 37, transpose ? 37 : 45);
        operand.key = key;
        cpu::run(
            ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
        const auto expected = test::reference(source, transpose, spec, key);
        test::Matrix decoded(DType::f32, operand.rows, operand.k);
        cpu::run(ops::Dequantize{operand, false, decoded.view()});
        TensorView view = decoded.view();
        std::int64_t wrong = 0;
        for (std::int64_t r = 0; r < operand.rows; ++r) {
          for (std::int64_t c = 0; c < operand.k; ++c) {
            const test::ExpectedElement& e = expected[static_cast<std::size_t>(r * operand.k + c)];
            const float value = e.scale * decode(spec.format, e.code);
            const bool same = operand.code(r, c) == e.code && view.row<float>(r)[c] == value;
            wrong += same ? 0 : 1;
          }
        }
        CHECK(wrong == 0);
        const OperandStatistics s = test::measure(source.view(), transpose, operand);
        CHECK(s.saturation_fraction == 0.0);
        CHECK(s.nonfinite_count == 0.0);
        CHECK(s.sqnr_db > (spec.format.bits() > 5 ? 24.0 : 10.0));
      }
    }
  }
}

TEST_CASE("wide formats are rounded once and stored in the narrowest type that holds them") {
  for (const char* name : {"e8m3", "e8m5", "e5m6", "e6m7", "fp16", "e5m12", "e8m10"}) {
    for (const DType from : {DType::bf16, DType::f32}) {
      for (const bool transpose : {false, true}) {
        CAPTURE(name, name_of(from), transpose);
        QuantSpec spec;
        spec.format = *format_by_name(name);
        spec.rounding = Rounding::stochastic;
        spec.overflow = Overflow::special;
        CHECK(spec.storage() == (spec.format.mantissa_bits <= 7 ? DType::bf16 : DType::f32));
        test::Matrix source(from, 21, 70);
        test::fill_wide(source, 9);
        const RandomKey key{4, 5, 6, 0};
        test::Operand operand(spec, transpose ? 70 : 21, transpose ? 21 : 70);
        operand.key = key;
        cpu::run(
            ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
        test::Matrix decoded(DType::f32, operand.rows, operand.k);
        cpu::run(ops::Dequantize{operand, false, decoded.view()});
        const auto expected = test::reference(source, transpose, spec, key);
        std::int64_t wrong = 0;
        for (std::int64_t i = 0; i < operand.rows * operand.k; ++i) {
          const std::uint32_t code = expected[static_cast<std::size_t>(i)].code;
          const float value = decoded.view().row<float>(i / operand.k)[i % operand.k];
          wrong += float_bits(value) == decode_bits(spec.format, code) ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("an int8 GEMM accumulates exactly as in int32") {
  QuantSpec spec;
  spec.format = kInt8;
  spec.scale_source = ScaleSource::current;
  constexpr std::int64_t kRows = 5, kColumns = 7, kDepth = 3000;
  test::Operand a(spec, kRows, kDepth), b(spec, kColumns, kDepth);
  const auto fill = [](test::Operand& operand, std::uint64_t seed) {
    for (std::int64_t r = 0; r < operand.rows; ++r) {
      for (std::int64_t k = 0; k < operand.k; ++k) {
        const std::uint32_t random =
            random_bits(seed, 0, 0, 0, static_cast<std::uint64_t>(r * operand.k + k));
        const int value = static_cast<int>(random % 64) + 64;  // one sign: sums above 2^24
        operand.codes.row<std::uint8_t>(r)[k] = static_cast<std::uint8_t>(value);
      }
    }
    operand.scales.row<float>(0)[0] = 0.0123f;
  };
  fill(a, 1);
  fill(b, 2);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_exact;
  gemm.output = DType::f32;
  test::Matrix d(DType::f32, kRows, kColumns);
  cpu::run(ops::Gemm{gemm, a, b, {}, false, d.view()});
  const TensorView view = d.view();
  for (std::int64_t m = 0; m < kRows; ++m) {
    for (std::int64_t n = 0; n < kColumns; ++n) {
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < kDepth; ++k) {
        sum += static_cast<std::int8_t>(a.code(m, k)) * static_cast<std::int8_t>(b.code(n, k));
      }
      CHECK(sum > 1 << 24);
      CHECK(view.row<float>(m)[n] == static_cast<float>(sum) * (0.0123f * 0.0123f));
    }
  }
}

TEST_CASE("formats enter the units that hold their values, and no others") {
  const auto refused = [](const char* name, Accumulator accumulator) {
    QuantSpec spec;
    spec.format = *format_by_name(name);
    GemmSpec gemm;
    gemm.accumulator = accumulator;
    return !gemm_refusal(gemm, spec, spec).empty();
  };
  for (const char* name : {"e2m1", "e2m3", "e3m2", "int4"}) {
    CHECK_FALSE(refused(name, Accumulator::sm90_wgmma_fp8));
  }
  for (const char* name :
       {"e4m3_240", "e3m4", "e4m3b11", "e4m3fnuz", "e5m2fnuz", "e5m6", "int8", "mxint8", "lns8"}) {
    CHECK(refused(name, Accumulator::sm90_wgmma_fp8));
    CHECK_FALSE(refused(name, Accumulator::sm90_bf16));
  }
  CHECK(refused("e5m10", Accumulator::sm90_bf16));
  CHECK_FALSE(refused("e5m10", Accumulator::ideal_fp32));
}

TEST_CASE("LogFMT tiles have their own codebook between their extremes") {
  for (const char* name : {"logfmt8", "logfmt4"}) {
    const FormatSpec format = *format_by_name(name);
    const std::uint32_t last = format.max_finite_code();
    // Extremes 2^-5 and 8: 8 octaves over K - 1 steps.
    const LogCodebook book = log_codebook(format, 8.0f, 0x1p-5f);
    CHECK(book.scale == 8.0f);
    CHECK(book.step == 8.0f / static_cast<float>(last - 1));
    CHECK(decode_log_codebook(format, book, last) == 8.0f);
    CHECK(decode_log_codebook(format, book, 1) == Approx(0x1p-5));
    CHECK(decode_log_codebook(format, book, 0) == 0.0f);
    // Thirty-two octaves at most.
    CHECK(log_codebook(format, 1.0f, 0x1p-100f).step == 32.0f / static_cast<float>(last - 1));
    for (std::uint32_t k = 0; k < last; ++k) {
      const float lo = decode_log_codebook(format, book, k);
      const float hi = decode_log_codebook(format, book, k + 1);
      const double exact = k == 0 ? 0.0 : 8.0 * std::exp2(-8.0 * (last - k) / (last - 1.0));
      REQUIRE(lo == Approx(exact).epsilon(1e-6));
      const auto code = [&](float x, Rounding rounding, std::uint32_t random = 0) {
        return encode_log_codebook(format, book, x, rounding, random);
      };
      const float below = lo + (hi - lo) * 0.49f, above = lo + (hi - lo) * 0.51f;
      REQUIRE(code(lo, Rounding::nearest) == k);
      REQUIRE(code(below, Rounding::nearest) == k);  // in linear space
      REQUIRE(code(above, Rounding::nearest) == k + 1);
      REQUIRE(code(-above, Rounding::ties_down) == (format.sign_mask() | (k + 1)));
      REQUIRE(code(above, Rounding::toward_zero) == k);
      REQUIRE(code(above, Rounding::stochastic, 0x80000000u) == k + 1);
      REQUIRE(code(below, Rounding::stochastic, 0x80000000u) == k);
    }
    CHECK(encode_log_codebook(format, book, 9.0f, Rounding::nearest, 0) == last);
    CHECK(encode_log_codebook(format, book, -0.0f, Rounding::nearest, 0) == format.sign_mask());
    // One magnitude: every code is it, and it takes the last.
    const LogCodebook one = log_codebook(format, 3.0f, 3.0f);
    CHECK(encode_log_codebook(format, one, 3.0f, Rounding::nearest, 0) == last);
    CHECK(log_codebook(format, 0.0f, 0.0f).scale == 1.0f);
    CHECK(std::isnan(log_codebook(format, bits_float(kF32Infinity), 1.0f).scale));
  }
}

TEST_CASE("LogFMT operands are quantized by tile and multiplied as their values") {
  for (const bool transpose : {false, true}) {
    QuantSpec spec;
    spec.format = kLogFmt8;
    spec.tile = {1, 128};
    spec.scale_source = ScaleSource::current;
    spec.rounding = transpose ? Rounding::stochastic : Rounding::nearest;
    test::Matrix source(DType::bf16, 40, 150);
    test::fill_wide(source, 6);
    test::Operand operand(spec, transpose ? 150 : 40, transpose ? 40 : 150);
    const RandomKey key{3, 1, 4, 0};
    operand.key = key;
    cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
    test::Matrix decoded(DType::f32, operand.rows, operand.k, 0);
    cpu::run(ops::Dequantize{operand, false, decoded.view()});
    std::int64_t wrong = 0;
    for (std::int64_t r = 0; r < operand.rows; ++r) {
      for (std::int64_t c = 0; c < operand.k; ++c) {
        const std::int64_t first = c / 128 * 128, end = std::min(first + 128, operand.k);
        float amax = 0.0f, amin = bits_float(kF32MaxFinite);
        for (std::int64_t i = first; i < end; ++i) {
          const float x = std::fabs(test::source_at(source, transpose, r, i));
          amax = std::max(amax, x);
          if (x > 0.0f) amin = std::min(amin, x);
        }
        const LogCodebook book = log_codebook(kLogFmt8, amax, amin);
        const std::int64_t index = transpose ? c * 150 + r : r * 150 + c;
        const std::uint32_t random = random_bits(3, 1, 4, 0, static_cast<std::uint64_t>(index));
        const std::uint32_t code = encode_log_codebook(
            kLogFmt8, book, test::source_at(source, transpose, r, c), spec.rounding, random);
        const float value = decode_log_codebook(kLogFmt8, book, code);
        const bool same = operand.code(r, c) == code && operand.scale(r, c / 128) == book.scale &&
                          operand.scale(r, spec.tile_cols(operand.k) + c / 128) == book.step &&
                          decoded.view().row<float>(r)[c] == value;
        wrong += same ? 0 : 1;
      }
    }
    CHECK(wrong == 0);
    CHECK(test::measure(source.view(), transpose, operand).saturation_fraction == 0.0);
    GemmSpec gemm;
    gemm.accumulator = Accumulator::ideal_fp32;
    gemm.output = DType::f32;
    QuantSpec plain;
    plain.format = kFP32;
    QuantizedOperand values{plain, operand.rows, operand.k, decoded.view(), {}};
    test::Matrix d(DType::f32, operand.rows, operand.rows),
        e(DType::f32, operand.rows, operand.rows);
    cpu::run(ops::Gemm{gemm, operand, operand, {}, false, d.view()});
    reference::gemm(ops::Gemm{gemm, values, values, {}, false, e.view()});
    for (std::int64_t r = 0; r < operand.rows; ++r) {
      REQUIRE(d.view().row<float>(r)[0] == e.view().row<float>(r)[0]);
    }
    gemm.accumulator = Accumulator::sm90_wgmma_fp8;
    CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, operand, operand, {}, false, d.view()}),
                      Catch::Contains("logfmt8"));
    spec.scale.margin = 1;
    CHECK_FALSE(supports_quantization(spec));
  }
}

TEST_CASE("the tensor core multiplies logarithmic codes as the BF16 numbers they are") {
  QuantSpec spec;
  spec.format = kLns8;
  test::Operand a(spec, 3, 64), b(spec, 4, 64);
  QuantSpec wide;
  test::Operand wide_a(wide, 3, 64), wide_b(wide, 4, 64);
  const auto fill = [](test::Operand& narrow, test::Operand& values) {
    for (std::int64_t r = 0; r < narrow.rows; ++r) {
      for (std::int64_t k = 0; k < narrow.k; ++k) {
        const auto code = static_cast<std::uint8_t>(r * 31 + k * 7);
        narrow.codes.row<std::uint8_t>(r)[k] = code;
        values.codes.row<std::uint16_t>(r)[k] = to_bf16(decode(kLns8, code));
      }
    }
  };
  fill(a, wide_a);
  fill(b, wide_b);
  GemmSpec gemm;
  gemm.output = DType::f32;
  test::Matrix d(DType::f32, 3, 4), expected(DType::f32, 3, 4), slow(DType::f32, 3, 4);
  cpu::run(ops::Gemm{gemm, a, b, {}, false, d.view()});
  reference::gemm(ops::Gemm{gemm, a, b, {}, false, slow.view()});
  cpu::run(ops::Gemm{gemm, wide_a, wide_b, {}, false, expected.view()});
  for (std::int64_t m = 0; m < 3; ++m) {
    for (std::int64_t n = 0; n < 4; ++n) {
      CHECK(d.view().row<float>(m)[n] == expected.view().row<float>(m)[n]);
      CHECK(slow.view().row<float>(m)[n] == expected.view().row<float>(m)[n]);
    }
  }
}
