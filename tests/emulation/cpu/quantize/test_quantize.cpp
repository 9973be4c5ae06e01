#include <catch2/catch.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulation/cpu/operations.hpp"
#include "emulation/cpu/quantize/tile_scales.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "tests/emulation/cpu/quantize/quantize_reference.hpp"

namespace fp8lab {
namespace {

using numerics::bits_float;
using numerics::float_bits;
using numerics::FormatSpec;
using numerics::Overflow;
using numerics::Rounding;
using numerics::ScaleArithmetic;
using numerics::ScaleFormat;
using numerics::ScaleRounding;
using test::Matrix;
using test::Operand;

constexpr RandomKey kKey{11, 22, 33, 0};

/// Quantizes and returns the number of codes and scales that differ from the reference.
std::int64_t mismatches(Matrix& source, bool transpose, const QuantSpec& spec) {
  Operand operand(spec, transpose ? source.cols() : source.rows(),
                  transpose ? source.rows() : source.cols());
  operand.key = kKey;
  cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
  const auto expected = test::reference(source, transpose, spec, kKey);
  const std::int64_t height = spec.tile.rows == 0 ? operand.rows : spec.tile.rows;
  const std::int64_t width = spec.tile.cols == 0 ? operand.k : spec.tile.cols;
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t c = 0; c < operand.k; ++c) {
      const auto& element = expected[static_cast<std::size_t>(r * operand.k + c)];
      if (operand.code(r, c) != element.code) ++count;
      if (spec.has_scale() &&
          float_bits(operand.scale(r / height, c / width)) != float_bits(element.scale)) {
        ++count;
      }
    }
  }
  return count;
}

const std::vector<TileShape>& tiles() {
  static const std::vector<TileShape> all = {
      {0, 0}, {1, 0},   {1, 128}, {128, 128}, {1, 32},  {32, 32}, {1, 16}, {16, 16}, {4, 4},
      {1, 1}, {128, 1}, {3, 7},   {5, 300},   {300, 5}, {64, 0},  {0, 64}, {1, 600}, {3, 700}};
  return all;
}

}  // namespace

TEST_CASE("every tile shape in both orientations equals the naive loop") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const auto [rows, cols] = GENERATE(table<std::int64_t, std::int64_t>(
      {{1, 1}, {3, 5}, {70, 33}, {130, 261}, {300, 65}, {1100, 40}}));
  Matrix source(dtype, rows, cols);
  test::fill_wide(source, 5);
  for (const TileShape& tile : tiles()) {
    for (const bool transpose : {false, true}) {
      INFO(name_of(dtype) << " (" << rows << ", " << cols << ") tile " << tile_name(tile)
                          << (transpose ? " transposed" : ""));
      CHECK(mismatches(source, transpose, quantized(numerics::kE4M3, tile)) == 0);
    }
  }
}

TEST_CASE("every scale rule equals the naive loop") {
  Matrix source(DType::bf16, 37, 300);
  test::fill_wide(source, 6);
  for (const auto format : {ScaleFormat::fp32, ScaleFormat::pow2, ScaleFormat::e8m0}) {
    for (const auto rounding : {ScaleRounding::nearest, ScaleRounding::ceil,
                                ScaleRounding::enc_floor, ScaleRounding::ocp_floor,
                                ScaleRounding::rceil, ScaleRounding::even, ScaleRounding::floor}) {
      for (const auto arithmetic :
           {ScaleArithmetic::enc_div, ScaleArithmetic::dec_div_recip, ScaleArithmetic::dec_div}) {
        QuantSpec spec = quantized(numerics::kE4M3, {1, 128});
        spec.scale = {format, rounding, arithmetic, 1e-4f, 1};
        INFO(label(spec) << " rounding " << static_cast<int>(rounding) << " arithmetic "
                         << static_cast<int>(arithmetic));
        CHECK(mismatches(source, false, spec) == 0);
        CHECK(mismatches(source, true, spec) == 0);
      }
    }
  }
}

TEST_CASE("scales from standard deviations equal the naive loop") {
  const DType dtype = GENERATE(DType::bf16, DType::f32);
  const auto [rows, cols] = GENERATE(
      table<std::int64_t, std::int64_t>({{1, 1}, {3, 5}, {130, 261}, {300, 65}, {1100, 40}}));
  Matrix source(dtype, rows, cols);
  test::fill_wide(source, 5);
  if (rows > 100) {  // beside ordinary tiles: constant ones, infinity and NaN
    for (std::int64_t i = 0; i < 40 * 40; ++i) source.set(i / 40, i % 40, 0.3f);
    source.set(70, 3, std::numeric_limits<float>::infinity());
    source.set(90, 39, std::nanf(""));
  }
  for (const TileShape tile : {TileShape{1, 32}, {32, 32}, {1, 1}, {3, 7}, {1024, 1}, {1, 1024}}) {
    for (const auto format : {ScaleFormat::fp32, ScaleFormat::pow2, ScaleFormat::e8m0}) {
      QuantSpec spec = quantized(numerics::kE2M1, tile);
      spec.scale.format = format;
      spec.scale.deviations = 2.92247856f;
      spec.rounding = tile.rows == 3 ? Rounding::stochastic : Rounding::nearest;
      INFO(name_of(dtype) << " (" << rows << ", " << cols << ") " << label(spec));
      CHECK(mismatches(source, false, spec) == 0);
      CHECK(mismatches(source, true, spec) == 0);
    }
  }
}

TEST_CASE("scales with a factor equal the naive loop") {
  Matrix source(DType::bf16, 37, 300);
  test::fill_wide(source, 6);
  for (const TileShape tile : {TileShape{1, 32}, {1, 0}, {}}) {
    QuantSpec spec = quantized(numerics::kE2M1, tile);
    spec.scale.format = ScaleFormat::pow2;
    spec.scale.rounding = ScaleRounding::ocp_floor;
    spec.scale.factor = 1.3333334f;
    CHECK(mismatches(source, false, spec) == 0);
    CHECK(mismatches(source, true, spec) == 0);
  }
}

TEST_CASE("scales of many tiles are those of each") {
  std::vector<std::uint32_t> amax;
  for (std::uint32_t bits = 0x28000001u; bits < 0x66000000u; bits += 0x00051237u) {
    amax.push_back(bits);
  }
  const auto ordinary = static_cast<std::ptrdiff_t>(amax.size());
  amax.insert(amax.end(), {0u, 1u, 0x00800000u, 0x7F7FFFFFu, 0x7F800000u, 0x7FC00000u});
  const auto arithmetic =
      GENERATE(ScaleArithmetic::enc_div, ScaleArithmetic::dec_div_recip, ScaleArithmetic::dec_div);
  const auto [epsilon, mode] =
      GENERATE(table<float, numerics::EpsilonMode>({{0.0f, numerics::EpsilonMode::floor},
                                                    {1e-3f, numerics::EpsilonMode::floor},
                                                    {1e-3f, numerics::EpsilonMode::add}}));
  for (const auto format : {ScaleFormat::fp32, ScaleFormat::pow2, ScaleFormat::e8m0}) {
    QuantSpec spec = quantized(numerics::kE4M3, {1, 128});
    spec.scale.format = format;
    spec.scale.arithmetic = arithmetic;
    spec.scale.amax_epsilon = epsilon;
    spec.scale.epsilon_mode = mode;
    CAPTURE(static_cast<int>(format), static_cast<int>(arithmetic), epsilon);
    // All at once, from the epsilon on, and with amaxes that are not ordinary.
    for (const std::ptrdiff_t first : {ordinary / 2, std::ptrdiff_t{0}}) {
      const std::vector<std::uint32_t> some(amax.begin() + first,
                                            first > 0 ? amax.begin() + ordinary : amax.end());
      std::vector<float> decode(some.size()), factor(some.size());
      cpu::TileScales scales(spec, 1.0f);
      scales.of_all(some.data(), static_cast<std::int64_t>(some.size()), decode.data(),
                    factor.data());
      std::int64_t differences = 0;
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto one = numerics::tile_scale(spec.scale, spec.format, bits_float(some[i]));
        differences += float_bits(decode[i]) != float_bits(one.decode);
        differences +=
            float_bits(factor[i]) != float_bits(one.divide ? one.decode : one.multiplier);
      }
      CHECK(differences == 0);
    }
  }
}

TEST_CASE("every narrow format, rounding and overflow equals the naive loop") {
  Matrix source(DType::f32, 40, 150);
  test::fill_wide(source, 7);
  for (const char* name : {"e4m3fn", "e5m2", "e3m4", "e2m3", "e3m2", "e2m1", "e4m3", "e5m1", "e1m2",
                           "e6m1", "e7m0f", "e2m5", "e4m2b11"}) {
    const std::optional<FormatSpec> format = format_by_name(name);
    REQUIRE(format);
    for (const auto rounding : {Rounding::nearest, Rounding::toward_zero, Rounding::stochastic}) {
      for (const auto overflow : {Overflow::saturate, Overflow::special}) {
        for (const auto source_kind : {ScaleSource::current, ScaleSource::none}) {
          QuantSpec spec = quantized(*format, {1, 32});
          spec.rounding = rounding;
          spec.overflow = overflow;
          spec.scale_source = source_kind;
          INFO(label(spec) << " overflow " << static_cast<int>(overflow));
          CHECK(mismatches(source, false, spec) == 0);
          CHECK(mismatches(source, true, spec) == 0);
        }
      }
    }
  }
}

TEST_CASE("few random bits and a rounding to another format first equal their definitions") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Matrix source(dtype, 40, 150);
    test::fill_wide(source, 8);
    for (const char* name : {"e4m3fn", "e5m2", "e2m1", "e3m4", "int8", "e4m3_240", "e5m1"}) {
      for (const char* via : {"fp32", "fp16", "bf16", "e8m10"}) {
        for (const char* rounding :
             {"nearest", "toward_zero", "stochastic", "stochastic:1", "stochastic:8",
              "stochastic:16", "stochastic:23", "stochastic:32"}) {
          for (const auto overflow : {Overflow::saturate, Overflow::special}) {
            QuantSpec spec = quantized(*format_by_name(name), {1, 32});
            spec.via = *format_by_name(via);
            spec.rounding = rounding_from_name(rounding)->rounding;
            spec.random_bits = rounding_from_name(rounding)->random_bits;
            spec.overflow = overflow;
            if (overflow == Overflow::special) spec.scale_source = ScaleSource::none;
            INFO(label(spec));
            CHECK(mismatches(source, false, spec) == 0);
            CHECK(mismatches(source, true, spec) == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("a cast through FP16 or BF16 rounds twice") {
  // 1.0625 is halfway between 1 and 1.125; a little more is lost in FP16, and more in BF16.
  Matrix source(DType::f32, 1, 5);
  const float values[] = {1.0625f + 0x1p-12f, 1.0625f + 0x1p-9f, -1.0625f - 0x1p-12f, 70000.0f,
                          0x1.8p-17f};
  for (int i = 0; i < 5; ++i) source.set(0, i, values[i]);
  const auto codes = [&](const FormatSpec& format, const FormatSpec& via) {
    QuantSpec spec = quantized(format, {});
    spec.scale_source = ScaleSource::none;
    spec.via = via;
    Operand operand(spec, 1, 5);
    operand.key = kKey;
    cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
    return std::vector<std::uint32_t>{operand.code(0, 0), operand.code(0, 1), operand.code(0, 2),
                                      operand.code(0, 3), operand.code(0, 4)};
  };
  using Codes = std::vector<std::uint32_t>;
  CHECK(codes(numerics::kE4M3, numerics::kFP32) == Codes{0x39, 0x39, 0xB9, 0x7E, 0x00});
  CHECK(codes(numerics::kE4M3, numerics::kFP16) == Codes{0x38, 0x39, 0xB8, 0x7E, 0x00});
  CHECK(codes(numerics::kE4M3, numerics::kBF16) == Codes{0x38, 0x38, 0xB8, 0x7E, 0x00});
  // Through FP16 70000 is infinity, and the code that of overflow. 0.75 of the smallest e5m2
  // number is an FP16 number.
  CHECK(codes(numerics::kE5M2, numerics::kFP16) == Codes{0x3C, 0x3C, 0xBC, 0x7B, 0x01});
  CHECK(codes(*format_by_name("e6m1"), numerics::kFP32)[3] == 0x5E);  // 65536
  CHECK(codes(*format_by_name("e6m1"), numerics::kFP16)[3] == 0x7D);  // the largest number
}

TEST_CASE("N random bits cut the probability of rounding up to a multiple of 2^-N") {
  constexpr std::int64_t kRows = 256, kCols = 256;
  // 0.45 of a step above 1: 115 of 256 words round up, 7 of 16, 1 of 4.
  const float value = 1.0f + 0.125f * 0.45f;
  Matrix source(DType::f32, kRows, kCols);
  for (std::int64_t i = 0; i < kRows * kCols; ++i) source.set(i / kCols, i % kCols, value);
  for (const auto& [bits, share] : {std::pair{8, 115.0 / 256}, {4, 7.0 / 16}, {2, 1.0 / 4}}) {
    QuantSpec spec = quantized(numerics::kE4M3, {});
    spec.scale_source = ScaleSource::none;
    spec.rounding = Rounding::stochastic;
    spec.random_bits = bits;
    Operand operand(spec, kRows, kCols);
    operand.key = kKey;
    cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
    int ups = 0;
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const std::uint32_t code = operand.code(i / kCols, i % kCols);
      REQUIRE((code == 0x38 || code == 0x39));
      const std::uint32_t word =
          numerics::random_bits(11, 22, 33, 0, static_cast<std::uint64_t>(i));
      const auto low = word & ((1u << bits) - 1u);  // the low bits of the element's word decide
      REQUIRE((code == 0x39) == (low + share * (1 << bits) >= (1 << bits)));
      ups += code == 0x39 ? 1 : 0;
    }
    const double n = kRows * kCols;
    const double bound = 5.0 * std::sqrt(share * (1.0 - share) / n);
    CHECK(std::abs(ups / n - share) < bound);
    if (bits <= 4) CHECK(std::abs(ups / n - 0.45) > bound);  // the bias of few bits is seen
  }
}

TEST_CASE("vector encoders equal the codec on every bf16 value") {
  Matrix source(DType::bf16, 256, 256);
  for (std::int64_t i = 0; i < 65536; ++i) {
    *(source.view().row<std::uint16_t>(i / 256) + i % 256) = static_cast<std::uint16_t>(i);
  }
  for (const char* name : {"e4m3fn", "e5m2", "e3m4", "e2m3", "e3m2", "e2m1"}) {
    for (const auto overflow : {Overflow::saturate, Overflow::special}) {
      QuantSpec spec = quantized(*format_by_name(name), {});
      spec.scale_source = ScaleSource::none;
      spec.overflow = overflow;
      Operand operand(spec, 256, 256);
      operand.key = kKey;
      cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
      std::int64_t wrong = 0;
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const std::uint32_t expected =
            numerics::encode(spec.format, i << 16, Rounding::nearest, overflow);
        if (operand.code(i / 256, i % 256) != expected) ++wrong;
      }
      INFO(name);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("infinity and NaN in a tile give it scale 1 and leave the others alone") {
  const float special =
      GENERATE(std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN());
  for (const bool transpose : {false, true}) {
    for (const auto format : {ScaleFormat::fp32, ScaleFormat::pow2, ScaleFormat::e8m0}) {
      Matrix source(DType::bf16, 130, 260);
      test::fill_wide(source, 8);
      source.set(5, 131, special);
      QuantSpec spec = quantized(numerics::kE4M3, {1, 128});
      spec.scale.format = format;
      CHECK(mismatches(source, transpose, spec) == 0);
      if (transpose || format == ScaleFormat::e8m0) continue;
      Operand operand(spec, 130, 260);
      operand.key = kKey;
      cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
      CHECK(operand.scale(5, 1) == 1.0f);
      CHECK(operand.scale(5, 0) != 1.0f);
      CHECK(operand.code(5, 131) == (std::isnan(special) ? 0x7Fu : 0x7Eu));
      spec.tile = {0, 0};
      CHECK(mismatches(source, transpose, spec) == 0);
    }
  }
}

TEST_CASE("an all-zero tile has zero codes and a finite scale") {
  Matrix source(DType::bf16, 4, 256);
  source.set(1, 200, 3.0f);
  source.set(2, 7, -0.0f);
  Operand operand(quantized(numerics::kE4M3, {1, 128}), 4, 256);
  operand.key = kKey;
  cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
  CHECK(operand.scale(0, 0) == 1.0f);
  CHECK(operand.code(0, 0) == 0u);
  CHECK(operand.code(1, 200) == 0x7Eu);
  CHECK(operand.code(2, 7) == 0x80u);
  CHECK(operand.scale(1, 1) == Approx(3.0f / 448.0f).epsilon(1e-6));
}

TEST_CASE("square tiles: the codes of the transpose are the transposed codes") {
  const std::int64_t size = GENERATE(16, 32, 128);
  Matrix source(DType::bf16, 200, 333);
  test::fill_wide(source, 9);
  QuantSpec spec = quantized(numerics::kE4M3, {size, size});
  Operand straight(spec, 200, 333), transposed(spec, 333, 200);
  straight.key = kKey;
  cpu::run(ops::Quantize{.source = source.view(), .operand = straight});
  transposed.key = kKey;
  cpu::run(ops::Quantize{.source = source.view(), .transpose = true, .operand = transposed});
  std::int64_t differing = 0;
  for (std::int64_t r = 0; r < 200; ++r) {
    for (std::int64_t c = 0; c < 333; ++c) {
      if (straight.code(r, c) != transposed.code(c, r)) ++differing;
      if (straight.scale(r / size, c / size) != transposed.scale(c / size, r / size)) ++differing;
    }
  }
  CHECK(differing == 0);
}

TEST_CASE("stochastic rounding is reproducible, keyed and unbiased") {
  constexpr std::int64_t kRows = 256, kCols = 257;
  const float value = 1.03f;  // between the e4m3 neighbours 1 and 1.125
  Matrix source(DType::f32, kRows, kCols);
  for (std::int64_t i = 0; i < kRows * kCols; ++i) source.set(i / kCols, i % kCols, value);
  QuantSpec spec = quantized(numerics::kE4M3, {});
  spec.scale_source = ScaleSource::none;
  spec.rounding = Rounding::stochastic;
  const auto codes = [&](RandomKey key, bool transpose) {
    Operand operand(spec, transpose ? kCols : kRows, transpose ? kRows : kCols);
    operand.key = key;
    cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
    std::vector<std::uint32_t> all;
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const std::int64_t r = i / kCols, c = i % kCols;
      all.push_back(transpose ? operand.code(c, r) : operand.code(r, c));
    }
    return all;
  };
  const auto first = codes(kKey, false);
  CHECK(first == codes(kKey, false));
  CHECK(first == codes(kKey, true));  // bits belong to the source element
  CHECK(first != codes({12, 22, 33, 0}, false));
  CHECK(first != codes({11, 23, 33, 0}, false));
  CHECK(first != codes({11, 22, 34, 0}, false));
  CHECK(first != codes({11, 22, 33, 1}, false));
  // Part of the number of the step, or all of it, may stand in memory.
  for (std::uint32_t part = 0; part <= 22; part += 11) {
    const std::uint32_t rest = 22 - part;
    RandomKey key = kKey;
    key.step = part;
    key.step_counter = &rest;
    CHECK(first == codes(key, false));
  }

  double sum = 0;
  for (const std::uint32_t code : first) {
    const float decoded = numerics::decode(numerics::kE4M3, code);
    REQUIRE((decoded == 1.0f || decoded == 1.125f));
    sum += decoded;
  }
  // Standard error of the mean of n draws of step 1/8 with probability p; 5 of them.
  const double n = static_cast<double>(first.size());
  const double p = (static_cast<double>(value) - 1.0) / 0.125;
  const double bound = 5.0 * 0.125 * std::sqrt(p * (1.0 - p) / n);
  CHECK(std::abs(sum / n - static_cast<double>(value)) < bound);
}

TEST_CASE("stochastic codes of tiles with codebooks follow the number of the step") {
  constexpr std::int64_t kRows = 8, kCols = 64;
  Matrix source(DType::f32, kRows, kCols);
  test::fill_wide(source, 10);
  QuantSpec expanded = quantized(numerics::kE4M3, {1, 32});
  expanded.transform.kind = RangeExpansion{};
  for (QuantSpec spec : {quantized(numerics::kLogFmt8, {1, 32}), expanded}) {
    spec.rounding = Rounding::stochastic;
    const auto codes = [&](const RandomKey& key) {
      Operand operand(spec, kRows, kCols);
      operand.key = key;
      cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
      std::vector<std::uint32_t> all;
      for (std::int64_t i = 0; i < kRows * kCols; ++i) {
        all.push_back(operand.code(i / kCols, i % kCols));
      }
      return all;
    };
    const auto first = codes(kKey);
    CHECK(first != codes({11, 23, 33, 0}));
    const std::uint32_t rest = 12;
    RandomKey key = kKey;
    key.step -= rest;
    CHECK(first != codes(key));
    key.step_counter = &rest;
    CHECK(first == codes(key));
  }
}

TEST_CASE("static scale: the decode factor is given") {
  Matrix source(DType::f32, 3, 40);
  test::fill_wide(source, 10);
  QuantSpec spec = quantized(numerics::kE5M2, {});
  spec.scale_source = ScaleSource::static_scale;
  spec.static_scale = 0.37f;
  for (const auto arithmetic : {ScaleArithmetic::enc_div, ScaleArithmetic::dec_div}) {
    spec.scale.arithmetic = arithmetic;
    Operand operand(spec, 3, 40);
    operand.key = kKey;
    cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
    CHECK(operand.scale(0, 0) == 0.37f);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < 120; ++i) {
      const float x = source.at(i / 40, i % 40);
      const float value = arithmetic == ScaleArithmetic::dec_div ? x / 0.37f : x * (1.0f / 0.37f);
      if (operand.code(i / 40, i % 40) != numerics::encode(spec.format, float_bits(value))) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("dequantize is the FP32 product, rounded to the destination") {
  Matrix source(DType::bf16, 67, 200);
  test::fill_wide(source, 11);
  for (const TileShape& tile : {TileShape{0, 0}, TileShape{1, 128}, TileShape{32, 32}}) {
    Operand operand(quantized(numerics::kE4M3, tile), 67, 200);
    operand.key = kKey;
    cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
    Matrix f32(DType::f32, 67, 200), bf16(DType::bf16, 200, 67);
    cpu::run(ops::Dequantize{operand, false, f32.view()});
    const TensorView bf16_view = bf16.view();
    cpu::run(ops::Dequantize{operand, true, bf16_view});
    std::int64_t wrong = 0;
    for (std::int64_t r = 0; r < 67; ++r) {
      for (std::int64_t c = 0; c < 200; ++c) {
        const float scale =
            operand.scale(tile.rows == 0 ? 0 : r / tile.rows, tile.cols == 0 ? 0 : c / tile.cols);
        const float value = scale * numerics::decode(numerics::kE4M3, operand.code(r, c));
        if (float_bits(f32.at(r, c)) != float_bits(value)) ++wrong;
        if (bf16_view.row<std::uint16_t>(c)[r] != numerics::to_bf16(value)) ++wrong;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("wide formats are stored as values") {
  Matrix source(DType::f32, 70, 90);
  test::fill_wide(source, 12);
  source.set(3, 4, std::numeric_limits<float>::quiet_NaN());
  source.set(5, 6, 3.4e38f);  // rounds to bf16 infinity
  for (const char* name : {"bf16", "fp32", "e8m3", "e8m5", "e5m6"}) {
    for (const bool transpose : {false, true}) {
      QuantSpec spec;
      spec.format = *format_by_name(name);
      Operand operand(spec, transpose ? 90 : 70, transpose ? 70 : 90);
      operand.key = kKey;
      cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
      std::int64_t wrong = 0;
      for (std::int64_t r = 0; r < operand.rows; ++r) {
        for (std::int64_t c = 0; c < operand.k; ++c) {
          const float x = test::source_at(source, transpose, r, c);
          if (std::string(name) == "fp32") {
            if (float_bits(operand.codes.row<float>(r)[c]) != float_bits(x)) ++wrong;
            continue;
          }
          const bool is_bf16 = std::string(name) == "bf16";
          const std::uint32_t code =
              numerics::encode(spec.format, float_bits(x), Rounding::nearest,
                               is_bf16 ? Overflow::special : Overflow::saturate);
          const float value = numerics::decode(spec.format, code);
          if (operand.codes.row<std::uint16_t>(r)[c] != float_bits(value) >> 16) ++wrong;
        }
      }
      INFO(name);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("what cannot be quantized is refused by name") {
  Matrix source(DType::bf16, 4, 8);
  const auto refused = [&](const QuantSpec& spec, const std::string& part) {
    Operand operand(spec, 4, 8);
    operand.key = kKey;
    CHECK_THROWS_WITH(cpu::run(ops::Quantize{.source = source.view(), .operand = operand}),
                      Catch::Contains(part));
    if (spec.scale_source != ScaleSource::delayed || !spec.tile.is_tensor()) {
      CHECK_THAT(supports_quantization(spec).reason, Catch::Contains(part));
    }
  };
  QuantSpec spec;
  spec.format = numerics::kBF16;
  spec.scale_source = ScaleSource::current;
  refused(spec, "bf16");
  refused(quantized(numerics::kE8M0, {}), "e8m0");
  spec = quantized(numerics::kE4M3, {1, 4});
  spec.scale_source = ScaleSource::delayed;
  refused(spec, "1x4");
  spec.tile = {};
  refused(spec, "state is missing");
  spec.scale_source = ScaleSource::static_scale;
  spec.static_scale = 0.0f;
  refused(spec, "above 0");
  spec = quantized(numerics::kE4M3, {1, 4});
  spec.random_bits = 8;
  refused(spec, "1 to 32 of stochastic rounding");
  spec.rounding = Rounding::stochastic;
  spec.format = numerics::kLns8;
  refused(spec, "discards bits of a significand");
  spec = quantized(numerics::kE4M3, {1, 4});
  spec.via = numerics::kE5M2;
  refused(spec, "accepted: fp32, bf16, fp16");
  spec.via = numerics::kFP16;
  spec.format = numerics::kLogFmt8;
  refused(spec, "before a cast to logfmt8");
  spec = quantized(numerics::kE2M1, {16, 16}, ScaleFormat::nv_two_level);
  spec.scale.outer = numerics::OuterScale::row;
  refused(spec, "a tile of one row");
  spec = quantized(numerics::kE2M1, {1, 4});
  spec.scale.outer = numerics::OuterScale::row;
  refused(spec, "is for two-level scales");

  Operand transposed(quantized(numerics::kE4M3, {}), 8, 4);
  transposed.key = kKey;
  CHECK_THROWS_WITH(cpu::run(ops::Quantize{.source = source.view(), .operand = transposed}),
                    Catch::Contains("(8, 4)"));
  transposed.key = kKey;
  CHECK_NOTHROW(
      cpu::run(ops::Quantize{.source = source.view(), .transpose = true, .operand = transposed}));
}

}  // namespace fp8lab
