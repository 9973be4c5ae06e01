// Smoothing of channels and expansion of the dynamic range.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/gemm/gemm.hpp"
#include "emulation/cpu/operations.hpp"
#include "emulation/numerics/range_expansion.hpp"
#include "emulation/numerics/smoothing.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/transform.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/reference/transform_case.hpp"

namespace fp8lab {
namespace {

using namespace test;
using numerics::float_bits;

/// Both sides of a smoothing between a (M, K) and b (N, K).
struct Smoothed {
  Smoothed(Matrix& a, Matrix& b, const QuantSpec& spec)
      : left(spec, a.rows(), a.cols()), right(spec, b.rows(), b.cols()), factors(1, a.cols()) {
    cpu::run(ops::SmoothingFactors{*spec.transform.as<Smoothing>(), a.view(), false, b.view(),
                                   false, factors.view()});
    left.channel_factors = right.channel_factors = factors.view();
    right.is_right = true;
  }
  Operand left, right;
  reference::FloatMatrix factors;
};

QuantSpec smoothed_int8(const std::string& name) {
  QuantSpec spec;
  spec.format = numerics::kInt8;
  spec.scale_source = ScaleSource::current;
  spec.transform = named(name);
  return spec;
}

TEST_CASE("smoothing factors are amax_a^s / amax_b^(1-s), and 1 where that says nothing") {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float strength : {0.0f, 0.25f, 0.5f, 0.8f, 1.0f}) {
    for (const float a : {1.0f, 3.7f, 1e-20f, 5e18f}) {
      for (const float b : {1.0f, 0.3f, 7e-12f, 9e11f}) {
        const double expected = std::pow(static_cast<double>(a), strength) /
                                std::pow(static_cast<double>(b), 1.0 - strength);
        // t has an error of at most (|terms| + |t|) 2^-23, exp2 one of an ulp.
        const double terms = std::fabs(std::log2(a)) + std::fabs(std::log2(b));
        CHECK(numerics::smoothing_factor(strength, a, b) ==
              Approx(expected).epsilon((3.0 * terms + 2.0) * 0x1p-23));
      }
    }
  }
  for (const float bad : {0.0f, infinity, std::nanf("")}) {
    CHECK(numerics::smoothing_factor(0.5f, bad, 2.0f) == 1.0f);
    CHECK(numerics::smoothing_factor(0.5f, 2.0f, bad) == 1.0f);
  }
  CHECK(numerics::smoothing_factor(1.0f, 0x1p-149f, 1.0f) == 0x1p-126f);
  CHECK(numerics::smoothing_factor(1.0f, 0x1p127f, 1.0f) == 0x1p126f);
  CHECK(numerics::smoothing_factor(0.0f, 1.0f, 0x1p-149f) == 0x1p126f);
}

TEST_CASE("smoothing leaves the product as it was") {
  // Exactly where the factors are powers of two, else each product carries two roundings.
  Matrix a = whole_numbers(4, 48, 1, 60), b = whole_numbers(3, 48, 2, 60);
  for (std::int64_t k = 0; k < 48; ++k) {
    a.set(0, k, std::ldexp(1.0f, 6 + static_cast<int>(k % 5)));
    b.set(1, k, 64.0f);
  }
  for (const char* name : {"smooth:1", "smooth:0", "smooth:0.5", "smooth:0.3"}) {
    const QuantSpec spec = smoothed_int8(name);
    Smoothed operands(a, b, spec);
    reference::FloatMatrix x = reference::transformed(a.view(), false, operands.left);
    reference::FloatMatrix w = reference::transformed(b.view(), false, operands.right);
    double largest = 0.0;
    for (std::int64_t i = 0; i < 4; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        double difference = 0.0, terms = 0.0;
        for (std::int64_t k = 0; k < 48; ++k) {
          const double product = static_cast<double>(a.at(i, k)) * b.at(j, k);
          difference += static_cast<double>(at(x.view(), i, k)) * at(w.view(), j, k) - product;
          terms += std::fabs(product);
        }
        CHECK(std::fabs(difference) <= terms * (0x1p-23 + 0x1p-48));
        largest = std::max(largest, std::fabs(difference));
      }
    }
    INFO(name);
    const bool exact = std::string(name) == "smooth:1" || std::string(name) == "smooth:0";
    CHECK((largest == 0.0) == exact);
    int wrong = 0;
    for (std::int64_t k = 0; k < 48; ++k) {
      const float factor = at(operands.factors.view(), 0, k);
      CHECK(factor == numerics::smoothing_factor(spec.transform.as<Smoothing>()->strength,
                                                 std::ldexp(1.0f, 6 + static_cast<int>(k % 5)),
                                                 64.0f));
      wrong += at(x.view(), 2, k) != a.at(2, k) / factor;
      wrong += at(w.view(), 2, k) != b.at(2, k) * factor;
    }
    reference::undo_transform(x.view(), false, operands.left);
    reference::undo_transform(w.view(), false, operands.right);
    for (std::int64_t k = 0; k < 48; ++k) {
      wrong += std::fabs(at(x.view(), 2, k) - a.at(2, k)) > std::fabs(a.at(2, k)) * 0x1.01p-23f;
      wrong += std::fabs(at(w.view(), 2, k) - b.at(2, k)) > std::fabs(b.at(2, k)) * 0x1.01p-23f;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("smoothing works on turned tensors, and static factors stay") {
  Matrix a = with_outliers(6, 40, 3), b = with_outliers(5, 40, 4);
  Matrix a_turned = transpose_of(a), b_turned = transpose_of(b);
  const QuantSpec spec = smoothed_int8("smooth:0.5");
  Smoothed operands(a, b, spec), turned(a, b, spec);
  reference::FloatMatrix factors(1, 40);
  cpu::run(ops::SmoothingFactors{*spec.transform.as<Smoothing>(), a_turned.view(), true,
                                 b_turned.view(), true, factors.view()});
  operands.left.key = kKey;
  cpu::run(ops::Quantize{.source = a.view(), .operand = operands.left});
  turned.left.key = kKey;
  cpu::run(ops::Quantize{.source = a_turned.view(), .transpose = true, .operand = turned.left});
  CHECK(operands.left.memory == turned.left.memory);
  operands.right.key = kKey;
  cpu::run(ops::Quantize{.source = b.view(), .operand = operands.right});
  turned.right.key = kKey;
  cpu::run(ops::Quantize{.source = b_turned.view(), .transpose = true, .operand = turned.right});
  CHECK(operands.right.memory == turned.right.memory);
  for (std::int64_t k = 0; k < 40; ++k) {
    CHECK(at(factors.view(), 0, k) == at(operands.factors.view(), 0, k));
  }
  const auto changes = [&](const char* name) {
    reference::FloatMatrix kept(1, 40);
    cpu::run(ops::SmoothingFactors{*named(name).as<Smoothing>(), a.view(), false, b.view(), false,
                                   kept.view()});
    cpu::run(ops::SmoothingFactors{*named(name).as<Smoothing>(), b.view(), false, a.view(), false,
                                   kept.view()});
    int changed = 0;
    for (std::int64_t k = 0; k < 40; ++k) {
      changed += at(kept.view(), 0, k) != at(operands.factors.view(), 0, k);
    }
    return changed;
  };
  CHECK(changes("smooth:0.5:static") == 0);
  CHECK(changes("smooth:0.5") > 30);
}

TEST_CASE("smoothing recovers outlier channels in a product; unmatched operands are refused") {
  Matrix x = with_outliers(32, 128, 1), w = whole_numbers(16, 128, 2, 20);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_fp32;
  gemm.output = DType::f32;
  const auto error_of = [&](const char* name) {
    Smoothed operands(x, w, smoothed_int8(name));
    operands.left.key = kKey;
    cpu::run(ops::Quantize{.source = x.view(), .operand = operands.left});
    operands.right.key = kKey;
    cpu::run(ops::Quantize{.source = w.view(), .operand = operands.right});
    reference::FloatMatrix d(32, 16);
    cpu::run(ops::Gemm{gemm, operands.left, operands.right, {}, false, d.view()});
    double error = 0.0;
    for (std::int64_t i = 0; i < 32; ++i) {
      for (std::int64_t j = 0; j < 16; ++j) {
        double exact = 0.0;
        for (std::int64_t k = 0; k < 128; ++k) {
          exact += static_cast<double>(x.at(i, k)) * w.at(j, k);
        }
        error += std::pow(at(d.view(), i, j) - exact, 2);
      }
    }
    return std::sqrt(error);
  };
  // Strength 0 divides both by their range in w, which hardly varies: no better than nothing.
  CHECK(error_of("smooth:0.5") < 0.4 * error_of("smooth:0"));

  const QuantSpec spec = smoothed_int8("smooth:0.5");
  Smoothed operands(x, w, spec), others(x, w, spec);
  operands.left.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = operands.left});
  operands.right.key = kKey;
  cpu::run(ops::Quantize{.source = w.view(), .operand = operands.right});
  others.right.key = kKey;
  cpu::run(ops::Quantize{.source = w.view(), .operand = others.right});
  reference::FloatMatrix d(32, 16);
  CHECK_NOTHROW(cpu::run(ops::Gemm{gemm, operands.left, operands.right, {}, false, d.view()}));
  CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, operands.left, others.right, {}, false, d.view()}),
                    Catch::Contains("different factors"));
  operands.right.is_right = false;
  CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, operands.left, operands.right, {}, false, d.view()}),
                    Catch::Contains("b the right operand"));
  operands.left.channel_factors = {};
  operands.left.key = kKey;
  CHECK_THROWS_WITH(cpu::run(ops::Quantize{.source = x.view(), .operand = operands.left}),
                    Catch::Contains("needs the factors of both operands"));
}

TEST_CASE("an expanded group has the power and center of COAT's rule, guarded at its edges") {
  struct Row {
    float amax, amin;
  };
  const Row rows[] = {{1.0f, 0.5f},   {3e-4f, 2e-7f}, {900.0f, 1e-2f},  {1e-8f, 3e-12f},
                      {2.0f, 1e-20f}, {7.0f, 6.0f},   {1e-25f, 1e-30f}, {1e20f, 1e-18f}};
  for (const Row& row : rows) {
    const numerics::ExpandedGroup group = numerics::expanded_group(row.amax, row.amin);
    const double max = row.amax + 1e-30, min = row.amin + 1e-30;
    const double k =
        std::floor(16.0 * std::log2(448.0 * 448.0 / 2.0) / std::log2(max / min)) / 16.0;
    INFO(row.amax << " " << row.amin);
    CHECK(group.exponent == static_cast<float>(std::clamp(k, 0.0625, 16.0)));
    CHECK(group.center == Approx(std::sqrt(max) * std::sqrt(min)).epsilon(1e-6));
    CHECK(group.scale ==
          Approx(std::pow(max / group.center, group.exponent) / 448.0).epsilon(1e-5));
    // The largest value becomes Qmax, the smallest one 2 / Qmax or more; 1e-30 moves tiny groups.
    if (k >= 0.0625 && k <= 16.0 && row.amin > 1e-28f) {
      CHECK(numerics::expand(group, -row.amax) == Approx(-448.0).epsilon(1e-4));
      CHECK(numerics::expand(group, row.amin) > 0.0044);
    }
  }
  CHECK(numerics::expanded_group(2.0f, 2.0f).exponent == 16.0f);
  CHECK(numerics::expanded_group(0x1p126f, 0x1p-140f).exponent == 0.0625f);
  for (const float bad : {0.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const numerics::ExpandedGroup group = numerics::expanded_group(bad, 1.0f);
    CHECK((group.scale == 1.0f && group.exponent == 1.0f && group.center == 1.0f));
  }
}

TEST_CASE("contracting undoes expanding") {
  for (const float ratio : {1.5f, 20.0f, 4e3f, 1e6f, 1e12f}) {
    const numerics::ExpandedGroup group = numerics::expanded_group(3.0f, 3.0f / ratio);
    for (int i = 0; i <= 100; ++i) {
      const float x = -3.0f * std::pow(ratio, -static_cast<float>(i) / 100.0f);
      // The logarithm l of x / c has an error of |l| 2^-23 and a few roundings, once on each way.
      const double l = std::fabs(std::log2(std::fabs(x) / group.center));
      const double bound = 0.7 * (l * 0x1p-21 + 0x1p-21 / group.exponent) + 0x1p-21;
      INFO(ratio << " " << x);
      CHECK(numerics::contract(group, numerics::expand(group, x)) == Approx(x).epsilon(bound));
    }
    CHECK(float_bits(numerics::contract(group, numerics::expand(group, -0.0f))) == 0x80000000u);
  }
}

/// Values of random sign whose magnitudes spread evenly over `octaves` in each row.
Matrix log_uniform(std::int64_t rows, std::int64_t cols, float octaves) {
  Matrix x(DType::f32, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::uint32_t bits =
          numerics::random_bits(6, 0, 0, 0, static_cast<std::uint64_t>(r * cols + c));
      const float power = static_cast<float>(bits >> 8) * 0x1p-24f * octaves;
      x.set(r, c, (bits & 1u ? -1e-3f : 1e-3f) * std::exp2(power));
    }
  }
  return x;
}

TEST_CASE("expanded operands are quantized by the definition, in both orientations") {
  Matrix x = log_uniform(20, 72, 5.0f);
  x.set(3, 7, 0.0f);
  for (std::int64_t c = 0; c < 32; ++c) x.set(1, c, 0.0f);
  Matrix turned = transpose_of(x);
  QuantSpec spec;
  spec.format = numerics::kE4M3;
  spec.tile = {1, 32};
  spec.scale_source = ScaleSource::current;
  spec.transform = named("expand");
  Operand operand(spec, 20, 72), other(spec, 20, 72);
  REQUIRE(operand.scales.cols == 9);
  operand.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = operand});
  other.key = kKey;
  cpu::run(ops::Quantize{.source = turned.view(), .transpose = true, .operand = other});
  CHECK(operand.memory == other.memory);
  CHECK(operand.scale_memory == other.scale_memory);
  reference::FloatMatrix back(20, 72);
  cpu::run(ops::Dequantize{operand, false, back.view()});
  int wrong = 0;
  for (std::int64_t r = 0; r < 20; ++r) {
    for (std::int64_t tile = 0; tile < 3; ++tile) {
      const std::int64_t end = std::min<std::int64_t>(72, tile * 32 + 32);
      float amax = 0.0f, amin = std::numeric_limits<float>::infinity();
      for (std::int64_t c = tile * 32; c < end; ++c) {
        const float magnitude = std::fabs(x.at(r, c));
        amax = std::max(amax, magnitude);
        if (magnitude > 0.0f) amin = std::min(amin, magnitude);
      }
      const numerics::ExpandedGroup group = numerics::expanded_group(amax, amin);
      wrong += operand.scale(r, tile) != group.scale;
      wrong += operand.scale(r, 3 + tile) != group.exponent;
      wrong += operand.scale(r, 6 + tile) != group.center;
      for (std::int64_t c = tile * 32; c < end; ++c) {
        const std::uint32_t code =
            numerics::encode(spec.format, float_bits(numerics::expand(group, x.at(r, c))),
                             spec.rounding, spec.overflow, 0);
        wrong += operand.code(r, c) != code;
        wrong +=
            at(back.view(), r, c) != numerics::contract(group, numerics::decode(spec.format, code));
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(operand.scale(1, 3) == 1.0f);  // the group of zeros
  CHECK(scale_bits_per_element(spec, 20, 64) == 3.0);
}

TEST_CASE("expansion sharpens narrow groups and rescues wide ones") {
  QuantSpec plain;
  plain.format = numerics::kE4M3;
  plain.tile = {1, 128};
  plain.scale_source = ScaleSource::current;
  QuantSpec expanded = plain;
  expanded.transform = named("expand");
  const auto statistics = [](Matrix& x, const QuantSpec& spec) {
    Operand operand(spec, 16, 256);
    operand.key = kKey;
    cpu::run(ops::Quantize{.source = x.view(), .operand = operand});
    return test::measure(x.view(), false, operand);
  };
  Matrix narrow = log_uniform(16, 256, 3.0f), wide = log_uniform(16, 256, 30.0f);
  CHECK(statistics(narrow, expanded).sqnr_db > statistics(narrow, plain).sqnr_db + 12.0);
  CHECK(statistics(wide, plain).underflow_fraction > 0.2);
  CHECK(statistics(wide, expanded).underflow_fraction == 0.0);
  CHECK(statistics(wide, expanded).saturation_fraction == 0.0);
  CHECK(statistics(wide, expanded).amax == statistics(wide, plain).amax);
}

TEST_CASE("expanded operands are decoded before they are multiplied, and need no partner") {
  Matrix x = log_uniform(12, 64, 4.0f), w = whole_numbers(8, 64, 2, 20);
  QuantSpec expanded, plain;
  expanded.format = plain.format = numerics::kE4M3;
  expanded.tile = {1, 32};
  expanded.scale_source = plain.scale_source = ScaleSource::current;
  expanded.transform = named("expand");
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_fp32;
  gemm.output = DType::f32;
  Operand a(expanded, 12, 64), b(plain, 8, 64);
  a.key = kKey;
  cpu::run(ops::Quantize{.source = x.view(), .operand = a});
  b.key = kKey;
  cpu::run(ops::Quantize{.source = w.view(), .operand = b});
  reference::FloatMatrix d(12, 8), values(12, 64), expected(12, 8);
  cpu::run(ops::Gemm{gemm, a, b, {}, false, d.view()});
  cpu::run(ops::Dequantize{a, false, values.view()});
  QuantSpec wide;
  wide.format = numerics::kFP32;
  QuantizedOperand decoded{wide, 12, 64, values.view(), {}};
  cpu::run(ops::Gemm{gemm, decoded, b, {}, false, expected.view()});
  for (std::int64_t i = 0; i < 12; ++i) {
    for (std::int64_t j = 0; j < 8; ++j) {
      CHECK(at(d.view(), i, j) == at(expected.view(), i, j));
    }
  }
  gemm.accumulator = Accumulator::sm90_wgmma_fp8;
  CHECK_THROWS_WITH(cpu::run(ops::Gemm{gemm, a, b, {}, false, d.view()}),
                    Catch::Contains("a, which is e4m3fn expanded"));
  Operand e5m2(expanded, 12, 64);
  e5m2.spec.format = numerics::kE5M2;
  e5m2.key = kKey;
  CHECK_THROWS_WITH(cpu::run(ops::Quantize{.source = x.view(), .operand = e5m2}),
                    Catch::Contains("expand fits values to the range of e4m3fn"));
}

}  // namespace
}  // namespace fp8lab
