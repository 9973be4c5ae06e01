// The scale rules beyond FP32 and powers of two, and what they do to whole tensors.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/cpu/quantize/quantize_reference.hpp"

using namespace fp8lab;
using namespace fp8lab::numerics;

namespace {

constexpr float kFloatMax = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

float next_up(float x) { return std::nextafter(x, kInfinity); }
float next_down(float x) { return std::nextafter(x, 0.0f); }

/// Nearest-even rounding of a positive number to `bits` mantissa bits, least exponent `lowest`.
float rounded_to(float x, int bits, int lowest) {
  const int exponent = std::max(std::ilogb(x), lowest);
  const double unit = std::ldexp(1.0, exponent - bits);
  return static_cast<float>(std::nearbyint(static_cast<double>(x) / unit) * unit);
}

float nearest_e4m3(float x) { return std::min(448.0f, rounded_to(x, 3, -6)); }

QuantSpec nv_spec(TileShape tile = {1, 16}) {
  return quantized(kE2M1, tile, ScaleFormat::nv_two_level);
}

/// True when quantize gives the codes and scales of the reference.
bool quantizes_as_defined(const QuantSpec& spec, test::Matrix& source, bool transpose) {
  const RandomKey key{1, 2, 3, 0};
  test::Operand operand(spec, transpose ? source.cols() : source.rows(),
                        transpose ? source.rows() : source.cols());
  operand.key = key;
  cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
  const auto expected = test::reference(source, transpose, spec, key);
  const std::int64_t height = spec.tile.rows == 0 ? operand.rows : spec.tile.rows;
  const std::int64_t width = spec.tile.cols == 0 ? operand.k : spec.tile.cols;
  for (std::int64_t r = 0; r < operand.rows; ++r) {
    for (std::int64_t c = 0; c < operand.k; ++c) {
      const test::ExpectedElement& e = expected[static_cast<std::size_t>(r * operand.k + c)];
      const float scale = operand.scale(r / height, c / width);
      if (operand.code(r, c) != e.code || float_bits(scale) != float_bits(e.scale)) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("an added epsilon is part of the amax") {
  ScaleRule coat{ScaleFormat::bf16, ScaleRounding::nearest, ScaleArithmetic::dec_div, 1e-10f};
  coat.epsilon_mode = EpsilonMode::add;
  for (const float amax : {0.0f, 0x1p-140f, 1e-10f, 3e-9f, 1.0f, 448.0f, 3e38f}) {
    const float exact = (amax + 1e-10f) / 448.0f;
    const TileScale scale = tile_scale(coat, kE4M3, amax);
    CHECK(scale.decode == rounded_to(exact, 7, -126));
    CHECK(scale.divide);
    CHECK(scaled_value(scale, 0.3f) == 0.3f / scale.decode);
  }
  ScaleRule floor = coat;
  floor.epsilon_mode = EpsilonMode::floor;
  CHECK(tile_scale(floor, kE4M3, 1e-10f).decode < tile_scale(coat, kE4M3, 1e-10f).decode);
  CHECK(tile_scale(floor, kE4M3, 1.0f).decode == tile_scale(coat, kE4M3, 1.0f).decode);
}

TEST_CASE("narrow scales are rounded to nearest and values quantized with what is stored") {
  for (const ScaleArithmetic arithmetic :
       {ScaleArithmetic::enc_div, ScaleArithmetic::dec_div_recip, ScaleArithmetic::dec_div}) {
    const bool divides = arithmetic == ScaleArithmetic::dec_div;
    for (float amax = 0x1p-20f; amax < 0x1p20f; amax *= 1.00237f) {
      const float exact =
          arithmetic == ScaleArithmetic::enc_div ? 1.0f / (448.0f / amax) : amax / 448.0f;
      const TileScale bf16 = tile_scale({ScaleFormat::bf16, {}, arithmetic}, kE4M3, amax);
      REQUIRE(bf16.decode == rounded_to(exact, 7, -126));
      REQUIRE(bf16.multiplier == 1.0f / bf16.decode);
      REQUIRE(bf16.divide == divides);
      const TileScale e4m3 = tile_scale({ScaleFormat::e4m3, {}, arithmetic}, kE4M3, amax);
      const float nearest = nearest_e4m3(exact);
      REQUIRE(e4m3.decode == (nearest == 0.0f ? 0x1p-9f : nearest));
      REQUIRE(e4m3.multiplier == 1.0f / e4m3.decode);
    }
  }
  for (const ScaleFormat format : {ScaleFormat::bf16, ScaleFormat::e4m3}) {
    const ScaleRule rule{format};
    for (const float amax : {0.0f, kInfinity, kNaN}) {
      CHECK(tile_scale(rule, kE4M3, amax).decode == 1.0f);
      CHECK(tile_scale(rule, kE4M3, amax).multiplier == 1.0f);
    }
    for (const float amax : {0x1p-149f, 0x1p-130f, 0x1p-126f, kFloatMax}) {
      const TileScale scale = tile_scale(rule, kE4M3, amax);
      CHECK(scale.decode > 0.0f);
      CHECK(std::isfinite(scale.multiplier));
    }
  }
  // A tie of E4M3: 1.0625 lies between 1 and 1.125 and goes to the even 1.
  const ScaleRule rule{ScaleFormat::e4m3, {}, ScaleArithmetic::dec_div};
  CHECK(tile_scale(rule, kE4M3, 476.0f).decode == 1.0f);
  CHECK(tile_scale(rule, kE4M3, 476.01f).decode == 1.125f);
  CHECK(tile_scale(rule, kE4M3, 1e9f).decode == 448.0f);
}

TEST_CASE("the limit of an infinite encode factor follows the input type") {
  ScaleRule rule;
  CHECK(tile_scale(rule, kE4M3, 0x1p-149f).multiplier == kFloatMax);
  rule.encode_limit = EncodeLimit::bf16;
  const float bf16_max = bits_float(0x7F7F0000u);
  CHECK(tile_scale(rule, kE4M3, 0x1p-149f).multiplier == bf16_max);
  CHECK(tile_scale(rule, kE4M3, 0x1p-149f).decode == 1.0f / bf16_max);
  // Only an infinite quotient is replaced: one between the two maxima stays.
  const float amax = 448.0f / bits_float(0x7F7F8000u);
  const float quotient = 448.0f / amax;
  REQUIRE(quotient > bf16_max);
  REQUIRE(std::isfinite(quotient));
  CHECK(tile_scale(rule, kE4M3, amax).multiplier == quotient);
}

TEST_CASE("power-of-two rules at powers of two, their neighbours and the ends of the range") {
  struct Row {
    ScaleRounding rounding;
    float amax;
    int exponent;
  };
  // e4m3fn: Qmax 448 = 1.75 * 2^8, emax 8. Expected decode exponents worked out by hand.
  const Row rows[] = {
      {ScaleRounding::ceil, 256.0f, 0},
      {ScaleRounding::ceil, next_down(448.0f), 0},
      {ScaleRounding::ceil, 448.0f, 0},
      {ScaleRounding::ceil, next_up(448.0f), 1},
      {ScaleRounding::enc_floor, 448.0f, 0},
      {ScaleRounding::enc_floor, next_up(448.0f), 1},
      {ScaleRounding::enc_floor, next_down(448.0f), 0},
      {ScaleRounding::rceil, 256.0f, 0},
      {ScaleRounding::rceil, 448.0f, 0},  // 448 RN(1/448) = 1
      {ScaleRounding::rceil, 449.0f, 1},
      {ScaleRounding::ocp_floor, next_down(256.0f), -1},
      {ScaleRounding::ocp_floor, 256.0f, 0},
      {ScaleRounding::ocp_floor, next_up(256.0f), 0},
      {ScaleRounding::ocp_floor, next_down(512.0f), 0},
      {ScaleRounding::ocp_floor, 512.0f, 1},
      {ScaleRounding::even, next_down(496.0f), 0},
      {ScaleRounding::even, 496.0f, 1},
      {ScaleRounding::even, 512.0f, 1},
      {ScaleRounding::nearest, 448.0f, 0},
      {ScaleRounding::nearest, 633.0f, 0},  // sqrt(2) * 448 = 633.57
      {ScaleRounding::nearest, 634.0f, 1},
      {ScaleRounding::ceil, 0x1p-126f, -127},
      {ScaleRounding::ocp_floor, 0x1p-149f, -127},
      {ScaleRounding::rceil, 0x1p-149f, -127},
      {ScaleRounding::enc_floor, 0x1p-149f, -127},
      {ScaleRounding::even, 0x1p-149f, -127},
      {ScaleRounding::ceil, kFloatMax, 120},
      {ScaleRounding::ocp_floor, kFloatMax, 119},
      {ScaleRounding::even, kFloatMax, 120},
  };
  for (const Row& row : rows) {
    for (const ScaleFormat format : {ScaleFormat::pow2, ScaleFormat::e8m0}) {
      CAPTURE(static_cast<int>(row.rounding), row.amax);
      const TileScale scale = tile_scale({format, row.rounding}, kE4M3, row.amax);
      CHECK(scale.decode == std::ldexp(1.0f, row.exponent));
    }
  }
}

TEST_CASE("integers and logarithms take the power-of-two rules by their own maxima") {
  const auto exponent = [](ScaleRounding rounding, FormatSpec element, float amax) {
    return std::ilogb(tile_scale({ScaleFormat::pow2, rounding}, element, amax).decode);
  };
  CHECK(exponent(ScaleRounding::ocp_floor, kMxInt8, 1.0f) == 0);  // OCP MX: emax 0
  CHECK(exponent(ScaleRounding::ocp_floor, kMxInt8, next_down(2.0f)) == 0);
  CHECK(exponent(ScaleRounding::ocp_floor, kMxInt8, 2.0f) == 1);
  CHECK(exponent(ScaleRounding::ceil, kMxInt8, 127.0f / 64) == 0);
  CHECK(exponent(ScaleRounding::ceil, kMxInt8, next_up(127.0f / 64)) == 1);
  CHECK(exponent(ScaleRounding::even, kMxInt8, 1.9921875f) == 1);  // six fraction bits
  CHECK(exponent(ScaleRounding::even, kMxInt8, next_down(1.9921875f)) == 0);
  CHECK(exponent(ScaleRounding::ceil, kInt8, 127.0f) == 0);
  CHECK(exponent(ScaleRounding::ceil, kInt8, next_up(127.0f)) == 1);
  CHECK(exponent(ScaleRounding::ocp_floor, kInt8, 64.0f) == 0);
  CHECK(exponent(ScaleRounding::ceil, kLns8, 60160.0f) == 0);
  CHECK(exponent(ScaleRounding::ocp_floor, kLns8, 32768.0f) == 0);
}

TEST_CASE("microxcaling makes tiles beyond the scale range NaN") {
  ScaleRule rule{ScaleFormat::e8m0, ScaleRounding::even};
  rule.scale_overflow = ScaleOverflow::nan;
  CHECK(std::isnan(tile_scale(rule, kMxInt8, kFloatMax).decode));  // rounds up to 2^128
  CHECK(tile_scale(rule, kMxInt8, 0x1.FCp127f).decode == 0x1p127f);
  CHECK(tile_scale(rule, kMxInt8, 0x1p-149f).decode == 0x1p-126f);  // its exponent field
  CHECK(std::isnan(tile_scale(rule, kMxInt8, kInfinity).decode));
  rule.scale_overflow = ScaleOverflow::saturate;
  CHECK(tile_scale(rule, kMxInt8, kFloatMax).decode == 0x1p127f);
  ScaleRule rceil{ScaleFormat::e8m0, ScaleRounding::rceil};
  CHECK(tile_scale(rceil, kE4M3, kInfinity).decode == 0x1p127f);
  rceil.scale_overflow = ScaleOverflow::nan;
  CHECK(std::isnan(tile_scale(rceil, kE4M3, kInfinity).decode));
  // A maximum below 1 makes the ratio itself overflow.
  const FormatSpec small{2, 1, 4, SpecialValues::none};
  CHECK(max_finite(small) == 0.75f);
  CHECK(std::isnan(tile_scale(rceil, small, kFloatMax).decode));
  rceil.scale_overflow = ScaleOverflow::saturate;
  CHECK(tile_scale(rceil, small, kFloatMax).decode == 0x1p127f);
}

TEST_CASE("published rules as combinations of fields") {
  // Intel and MS-AMP: encode factor 2^floor(log2(Qmax / amax)); zero gives 1; margin subtracts.
  ScaleRule intel{ScaleFormat::pow2, ScaleRounding::enc_floor};
  for (const float amax : {0.7f, 1.0f, 240.0f, 241.0f, 1e-3f}) {
    const int expected = static_cast<int>(std::floor(std::log2(240.0 / static_cast<double>(amax))));
    CHECK(tile_scale(intel, kE4M3Ieee, amax).multiplier == std::ldexp(1.0f, expected));
    intel.margin = 2;
    CHECK(tile_scale(intel, kE4M3Ieee, amax).multiplier == std::ldexp(1.0f, expected - 2));
    intel.margin = 0;
  }
  CHECK(tile_scale(intel, kE4M3Ieee, 0.0f).decode == 1.0f);
  // torchao divides in FP64 and rounds once: the same as one FP32 division, at its epsilon as well.
  ScaleRule torchao;
  torchao.amax_epsilon = 1e-12f;
  for (const FormatSpec element : {kE4M3, kE5M2}) {
    const double qmax = static_cast<double>(max_finite(element));
    CHECK(tile_scale(torchao, element, 0.0f).multiplier == static_cast<float>(qmax / 1e-12));
    for (float amax = 1e-11f; amax < 1e6f; amax *= 1.37f) {
      const auto expected = static_cast<float>(qmax / static_cast<double>(amax));
      REQUIRE(tile_scale(torchao, element, amax).multiplier == expected);
    }
  }
  // DeepGEMM: max(amax, 1e-4) / 448, x times the reciprocal.
  const ScaleRule deepgemm{ScaleFormat::fp32, {}, ScaleArithmetic::dec_div_recip, 1e-4f};
  CHECK(tile_scale(deepgemm, kE4M3, 1e-7f).decode == 1e-4f / 448.0f);
  CHECK(tile_scale(deepgemm, kE4M3, 1e-4f).decode == 1e-4f / 448.0f);
  CHECK(tile_scale(deepgemm, kE4M3, next_up(1e-4f)).decode == next_up(1e-4f) / 448.0f);
  // HALO: amax / 127, no epsilon; this house guards the zero.
  const ScaleRule halo{ScaleFormat::fp32, {}, ScaleArithmetic::dec_div};
  CHECK(tile_scale(halo, kInt8, 3.0f).decode == 3.0f / 127.0f);
  CHECK(tile_scale(halo, kInt8, 0.0f).decode == 1.0f);
}

TEST_CASE("two-level scales follow TransformerEngine's reference") {
  const ScaleRule rule{ScaleFormat::nv_two_level};
  const float sixth = 1.0f / 6.0f;
  for (const float tensor_amax : {1.0f, 0.013f, 6.0f, 2688.0f, 1e-30f, 1e30f, kFloatMax}) {
    const float s_enc = std::min(448.0f * 6.0f / tensor_amax, kFloatMax);
    CHECK(nv_tensor_factor(rule, kE2M1, tensor_amax) == s_enc);
    for (float share = 1.0f; share > 1e-8f; share *= 0.83f) {
      const float amax = tensor_amax * share;
      const float stored = nearest_e4m3(amax * (s_enc * sixth));
      const float scale = stored * (1.0f / s_enc);
      const float encode_factor = std::min(1.0f / scale, kFloatMax);
      const TileScale result = nv_tile_scale(kE2M1, s_enc, amax);
      CAPTURE(tensor_amax, share);
      REQUIRE(result.decode == scale);
      REQUIRE(result.multiplier == encode_factor);
      REQUIRE_FALSE(result.divide);
      const float large = nearest_e4m3((amax * (s_enc * sixth)) * 1.5f);
      REQUIRE(nv_tile_scale(kE2M1, s_enc, amax, true).decode == large * (1.0f / s_enc));
    }
  }
  CHECK(nv_tensor_factor(rule, kE2M1, 0.0f) == 1.0f);
  CHECK(nv_tensor_factor(rule, kE2M1, kInfinity) == 1.0f);
  CHECK(nv_tensor_factor(rule, kE2M1, kNaN) == 1.0f);
  CHECK(nv_tensor_factor(rule, kE2M1, 0x1p-149f) == kFloatMax);
  ScaleRule choice = rule;
  choice.four_over_six = FourOverSix::mae;
  CHECK(nv_tensor_factor(choice, kE2M1, 3.0f) == 512.0f);  // 256 * 6 / 3
  // The boundary below which a whole tile is lost: 2^-10 / 448 of the tensor's amax.
  const float s_enc = nv_tensor_factor(rule, kE2M1, 448.0f);
  CHECK(nv_tile_scale(kE2M1, s_enc, 0x1p-10f).decode == 0.0f);
  CHECK(nv_tile_scale(kE2M1, s_enc, 0x1.001p-10f).decode == 0x1p-9f / s_enc);
  CHECK(nv_tile_scale(kE2M1, s_enc, 0.0f).multiplier == kFloatMax);
  CHECK(scaled_value(nv_tile_scale(kE2M1, s_enc, 0.0f), 0.0f) == 0.0f);
  CHECK(std::isnan(nv_tile_scale(kE2M1, s_enc, kNaN).decode));
  CHECK(nv_tile_scale(kE2M1, 1.0f, kInfinity).decode == 448.0f);
}

TEST_CASE("tensors with two-level scales") {
  for (const TileShape tile : {TileShape{1, 16}, TileShape{16, 16}, TileShape{1, 0}}) {
    for (const FourOverSix choice : {FourOverSix::none, FourOverSix::mae, FourOverSix::mse}) {
      for (const DType dtype : {DType::bf16, DType::f32}) {
        for (const bool transpose : {false, true}) {
          CAPTURE(tile_name(tile), static_cast<int>(choice), name_of(dtype), transpose);
          QuantSpec spec = nv_spec(tile);
          spec.scale.four_over_six = choice;
          test::Matrix source(dtype, 70, 150);
          test::fill_wide(source, 11);
          CHECK(quantizes_as_defined(spec, source, transpose));
          if (tile.rows == 1) {
            spec.scale.outer = numerics::OuterScale::row;
            CHECK(quantizes_as_defined(spec, source, transpose));
            spec.scale.outer = numerics::OuterScale::tensor;
          }
          spec.rounding = Rounding::stochastic;
          CHECK(quantizes_as_defined(spec, source, transpose));
        }
      }
    }
  }
}

TEST_CASE("tensors with BF16 and E4M3 scales") {
  for (const ScaleFormat format : {ScaleFormat::bf16, ScaleFormat::e4m3}) {
    for (const ScaleArithmetic arithmetic : {ScaleArithmetic::enc_div, ScaleArithmetic::dec_div}) {
      for (const TileShape tile : {TileShape{1, 16}, TileShape{}, TileShape{1, 0}}) {
        QuantSpec spec;
        spec.format = kE4M3;
        spec.tile = tile;
        spec.scale = {format, {}, arithmetic, 1e-10f};
        spec.scale.epsilon_mode = EpsilonMode::add;
        spec.scale_source = ScaleSource::current;
        test::Matrix source(DType::bf16, 33, 80);
        test::fill_wide(source, 3);
        CHECK(quantizes_as_defined(spec, source, false));
        CHECK(quantizes_as_defined(spec, source, true));
      }
    }
  }
}

TEST_CASE("square two-level tiles serve both orientations") {
  QuantSpec spec = nv_spec({16, 16});
  spec.scale.four_over_six = GENERATE(FourOverSix::none, FourOverSix::mae, FourOverSix::mse);
  test::Matrix weight(DType::bf16, 48, 64);
  test::fill_wide(weight, 21);
  test::Operand straight(spec, 48, 64), turned(spec, 64, 48);
  cpu::run(ops::Quantize{.source = weight.view(), .operand = straight});
  cpu::run(ops::Quantize{.source = weight.view(), .transpose = true, .operand = turned});
  for (std::int64_t r = 0; r < 48; ++r) {
    for (std::int64_t c = 0; c < 64; ++c) {
      REQUIRE(straight.code(r, c) == turned.code(c, r));
      REQUIRE(straight.scale(r / 16, c / 16) == turned.scale(c / 16, r / 16));
    }
  }
}

TEST_CASE("a choice between 6 and 4 never loses and keeps 6 on a tie") {
  QuantSpec spec = nv_spec();
  spec.scale.four_over_six = FourOverSix::mse;
  test::Matrix source(DType::f32, 2, 16);
  // 4 and values that are multiples of 1 below it: with 4 at the top all are codes, with 6 not.
  for (std::int64_t c = 0; c < 16; ++c) {
    source.set(0, c, static_cast<float>(c % 5));  // 0, 1, 2, 3, 4
    source.set(1, c, c % 2 == 0 ? 6.0f : 0.0f);   // exact both ways: 6, and 4 scaled by 1.5
  }
  test::Operand operand(spec, 2, 16);
  cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
  CHECK(operand.code(0, 4) == encode(kE2M1, float_bits(4.0f)));
  CHECK(operand.code(1, 0) == encode(kE2M1, float_bits(6.0f)));
  const OperandStatistics s = test::measure(source.view(), false, operand);
  CHECK(s.sqnr_db > 100.0);
}

TEST_CASE("a tile that two-level scales flush counts as underflow") {
  test::Matrix source(DType::f32, 2, 16);
  for (std::int64_t c = 0; c < 16; ++c) {
    source.set(0, c, 1.0f);
    source.set(1, c, 1e-7f);
  }
  test::Operand operand(nv_spec(), 2, 16);
  cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
  CHECK(operand.scale(1, 0) == 0.0f);
  const OperandStatistics s = test::measure(source.view(), false, operand);
  CHECK(s.underflow_fraction == 0.5);
  CHECK(s.saturation_fraction == 0.0);
  CHECK(s.scale_min == s.scale_max);
  CHECK(s.zero_tile_fraction == 0.0);
}

TEST_CASE("infinity and NaN in a tensor with two-level scales") {
  test::Matrix source(DType::bf16, 3, 16);
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t c = 0; c < 16; ++c) source.set(r, c, 1.0f);
  }
  source.set(1, 3, kInfinity);
  source.set(2, 3, kNaN);
  CHECK(quantizes_as_defined(nv_spec(), source, false));
  test::Operand operand(nv_spec(), 3, 16);
  cpu::run(ops::Quantize{.source = source.view(), .operand = operand});
  CHECK(std::isnan(operand.scale(2, 0)));
  CHECK(operand.scale(1, 0) == 448.0f);  // the tensor's factor is 1
}

TEST_CASE("two-level operands multiply in groups of 16") {
  test::Matrix x(DType::bf16, 9, 70), w(DType::bf16, 35, 70);
  test::fill_wide(x, 1);
  test::fill_wide(w, 2);
  test::Operand a(nv_spec(), 9, 70), b(nv_spec({16, 16}), 35, 70);
  cpu::run(ops::Quantize{.source = x.view(), .operand = a});
  cpu::run(ops::Quantize{.source = w.view(), .operand = b});
  GemmSpec gemm;
  gemm.accumulator = Accumulator::sm90_bf16;  // FP8 instructions take 32 products
  gemm.schedule = Schedule::promote;
  gemm.promote_interval = 16;
  gemm.output = DType::f32;
  test::Matrix fast(DType::f32, 9, 35), slow(DType::f32, 9, 35);
  cpu::run(ops::Gemm{gemm, a, b, {}, false, fast.view()});
  reference::gemm(ops::Gemm{gemm, a, b, {}, false, slow.view()});
  bool same = true, any = false;
  for (std::int64_t m = 0; m < 9; ++m) {
    for (std::int64_t n = 0; n < 35; ++n) {
      const float value = fast.view().row<float>(m)[n];
      same = same && float_bits(value) == float_bits(slow.view().row<float>(m)[n]);
      any = any || value != 0.0f;
    }
  }
  CHECK(same);
  CHECK(any);
}

TEST_CASE("two-level scales are refused where there is one tile or no current amax") {
  QuantSpec spec = nv_spec({});
  CHECK_FALSE(supports_quantization(spec));
  spec = nv_spec({1, 16});
  CHECK(supports_quantization(spec));
  spec.scale_source = ScaleSource::static_scale;
  CHECK_FALSE(supports_quantization(spec));
  spec = nv_spec();
  spec.scale.format = ScaleFormat::fp32;
  spec.scale.four_over_six = FourOverSix::mae;
  CHECK_FALSE(supports_quantization(spec));
}
