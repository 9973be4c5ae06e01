// The clamp of outliers, and the product of what it takes away.
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
#include "emulation/numerics/outliers.hpp"
#include "emulation/ops/gemm/product.hpp"
#include "emulation/reference/clamp.hpp"
#include "emulation/reference/transform.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "emulation/spec/gemm_rules.hpp"
#include "tests/emulation/cpu/quantize/measure.hpp"
#include "tests/emulation/reference/transform_case.hpp"

namespace fp8lab {
namespace {

using namespace test;
using numerics::ClampBounds;
using numerics::float_bits;

/// An operand of a clamp, with memory for the bounds.
struct Clamped : Operand {
  Clamped(const QuantSpec& wanted, std::int64_t operand_rows, std::int64_t operand_k)
      : Operand(wanted, operand_rows, operand_k), bounds(1, 2) {
    clamp_bounds = bounds.view();
  }
  reference::FloatMatrix bounds;
};

QuantSpec quantizer(const numerics::FormatSpec& format, const std::string& transform,
                    TileShape tile = {}) {
  QuantSpec spec = quantized(format, tile);
  spec.transform = named(transform);
  return spec;
}

/// Quantizer of whole numbers up to 127, which keeps them.
QuantSpec whole(const std::string& transform) {
  QuantSpec spec = quantizer(numerics::kInt8, transform);
  spec.scale_source = ScaleSource::static_scale;
  return spec;
}

std::uint32_t random_word(std::uint64_t seed, std::uint64_t index) {
  return numerics::random_bits(seed, 2, 0, 0, index);
}

TEST_CASE("names of clamps survive being read, and others are refused") {
  for (const char* name : {"clamp:0.99", "clamp:0.999:compensated", "clamp:1", "clamp:0.75",
                           "clamp:0.99:compensated:quantized"}) {
    CHECK(transform_name(named(name)) == name);
  }
  CHECK(named("clamp:0.99").as<Clamp>()->quantile == 0.99);
  CHECK_FALSE(named("clamp:0.99").is_compensated());
  CHECK(named("clamp:0.99:compensated").compensation() == Compensation::original);
  CHECK(named("clamp:0.99:compensated:quantized").compensation() == Compensation::quantized);
  for (const char* name :
       {"clamp", "clamp:", "clamp:0.5", "clamp:1.01", "clamp:nan",
        "clamp:0.99:", "clamp:0.99:static", "clamp:-0.9", "clamp:0.9x",
        "clamp:0.9:compensated:", "clamp:0.9:quantized", "clamp:0.9:compensated:original",
        "clamp:0.9:compensated:quantized:", "clamp::compensated"}) {
    INFO(name);
    CHECK(!transform_from_name(name));
  }
}

/// The definition, by sorting.
ClampBounds sorted_bounds(const Matrix& x, double quantile) {
  std::vector<float> values;
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t c = 0; c < x.cols(); ++c) {
      if (!std::isnan(x.at(r, c))) values.push_back(x.at(r, c));
    }
  }
  if (values.empty()) return {};
  std::sort(values.begin(), values.end(),
            [](float a, float b) { return a != b ? a < b : std::signbit(a) && !std::signbit(b); });
  const double n = static_cast<double>(values.size());
  const auto cut = static_cast<std::size_t>(
      std::min(std::floor((1.0 - quantile) * n + 0.5), std::floor((n - 1.0) / 2.0)));
  return {values[cut], values[values.size() - 1 - cut]};
}

TEST_CASE("bounds are the order statistics of the whole tensor") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t cols : {1, 2, 3, 64, 131}) {
      for (const double quantile : {0.50001, 0.75, 0.9, 0.99, 0.999, 1.0}) {
        Matrix x(dtype, 7, cols);
        fill_wide(x, static_cast<std::uint64_t>(cols));
        for (int variant = 0; variant < 3; ++variant) {
          if (variant == 1) x.set(3, cols / 2, std::nanf(""));
          if (variant == 2) x.set(1, 0, -std::numeric_limits<float>::infinity());
          const ClampBounds got = reference::clamp_bounds(x.view(), quantile);
          const ClampBounds expected = sorted_bounds(x, quantile);
          INFO(cols << " " << quantile << " " << variant);
          CHECK(float_bits(got.lower) == float_bits(expected.lower));
          CHECK(float_bits(got.upper) == float_bits(expected.upper));
        }
      }
    }
  }
  Matrix hundred(DType::f32, 10, 10);
  for (int i = 0; i < 100; ++i) hundred.set(i / 10, i % 10, static_cast<float>(i * 37 % 100));
  const ClampBounds bounds = reference::clamp_bounds(hundred.view(), 0.99);
  CHECK((bounds.lower == 1.0f && bounds.upper == 98.0f));
  Matrix nothing(DType::f32, 2, 2);
  for (int i = 0; i < 4; ++i) nothing.set(i / 2, i % 2, std::nanf(""));
  const ClampBounds zeros = reference::clamp_bounds(nothing.view(), 0.9);
  CHECK((zeros.lower == 0.0f && zeros.upper == 0.0f));
}

TEST_CASE("a clamped value and its residual are the value") {
  const float infinity = std::numeric_limits<float>::infinity();
  Matrix x(DType::bf16, 32, 96);
  for (std::int64_t i = 0; i < 32 * 96; ++i) {  // BF16 over 12 binades: differences fit FP32
    const std::uint32_t bits = random_word(1, static_cast<std::uint64_t>(i));
    const float value = std::ldexp(1.0f + static_cast<float>(bits % 128) / 128.0f,
                                   static_cast<int>(bits / 128 % 12) - 6);
    x.set(i / 96, i % 96, bits >> 31 ? -value : value);
  }
  const ClampBounds bounds = reference::clamp_bounds(x.view(), 0.97);
  int wrong = 0, moved = 0, below = 0, above = 0;
  for (std::int64_t r = 0; r < 32; ++r) {
    for (std::int64_t c = 0; c < 96; ++c) {
      const float value = x.at(r, c), inside = numerics::clamped(bounds, value);
      const float residual = numerics::clamp_residual(bounds, value);
      wrong += inside + residual != value;
      wrong += inside < bounds.lower || inside > bounds.upper;
      wrong += (inside == value) != (float_bits(residual) == 0);
      wrong += numerics::clamped(bounds, inside) != inside;
      moved += inside != value;
      below += value < bounds.lower;
      above += value > bounds.upper;
    }
  }
  CHECK(wrong == 0);
  const int cut = 92;  // floor(0.03 * 3072 + 1/2)
  CHECK((moved > 120 && below <= cut && above <= cut));
  const ClampBounds unit{-1.0f, 2.0f};
  CHECK(std::isnan(numerics::clamped(unit, std::nanf(""))));
  CHECK(float_bits(numerics::clamp_residual(unit, std::nanf(""))) == 0);
  CHECK(numerics::clamped(unit, -infinity) == -1.0f);
  CHECK(numerics::clamp_residual(unit, infinity) == infinity);
}

TEST_CASE("codes are those of the clamped tensor, in both orientations") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Matrix x = with_outliers(24, 64, 3), source(dtype, 24, 64), inside(DType::f32, 24, 64);
    for (std::int64_t i = 0; i < 24 * 64; ++i) source.set(i / 64, i % 64, x.at(i / 64, i % 64));
    const ClampBounds bounds = sorted_bounds(source, 0.95);
    for (std::int64_t r = 0; r < 24; ++r) {
      for (std::int64_t c = 0; c < 64; ++c) {
        inside.set(r, c, std::clamp(source.at(r, c), bounds.lower, bounds.upper));
      }
    }
    for (const bool transpose : {false, true}) {
      const std::int64_t rows = transpose ? 64 : 24, k = transpose ? 24 : 64;
      const QuantSpec spec = quantizer(numerics::kE2M1, "clamp:0.95:compensated", {1, 16});
      QuantSpec plain = spec;
      plain.transform = {};
      Clamped operand(spec, rows, k);
      Operand expected(plain, rows, k);
      operand.key = kKey;
      cpu::run(ops::Quantize{.source = source.view(), .transpose = transpose, .operand = operand});
      expected.key = kKey;
      cpu::run(ops::Quantize{.source = inside.view(), .transpose = transpose, .operand = expected});
      CHECK(operand.memory == expected.memory);
      CHECK(operand.scale_memory == expected.scale_memory);
      CHECK(at(operand.bounds.view(), 0, 0) == bounds.lower);
      CHECK(at(operand.bounds.view(), 0, 1) == bounds.upper);
      // The way back is that of the codes.
      reference::FloatMatrix back(rows, k), codes(rows, k);
      cpu::run(ops::Dequantize{operand, false, back.view()});
      cpu::run(ops::Dequantize{expected, false, codes.view()});
      for (std::int64_t i = 0; i < rows * k; ++i) {
        CHECK(at(back.view(), i / k, i % k) == at(codes.view(), i / k, i % k));
      }
    }
  }
}

/// Whole numbers up to 50, one in 40 around 300.
Matrix rare_outliers(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Matrix x = whole_numbers(rows, cols, seed, 50);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const std::uint32_t bits = random_word(seed, static_cast<std::uint64_t>(i));
    if (bits % 40 == 0) x.set(i / cols, i % cols, bits >> 31 ? -301.0f : 299.0f);
  }
  return x;
}

TEST_CASE("a compensated product of exact codes is the product, on either side and turned") {
  const std::int64_t m = 19, n = 11, k = 130;
  Matrix a = rare_outliers(m, k, 1), b = whole_numbers(n, k, 2, 60);
  Matrix a_turned = transpose_of(a), b_turned = transpose_of(b);
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_exact;
  gemm.output = DType::f32;
  const bool by_codes = GENERATE(false, true);
  for (const bool transpose : {false, true}) {
    Clamped wide(whole(by_codes ? "clamp:0.95:compensated:quantized" : "clamp:0.95:compensated"), m,
                 k);
    Operand plain(whole("none"), n, k);
    const TensorView wide_source = transpose ? a_turned.view() : a.view();
    TensorView plain_source = transpose ? b_turned.view() : b.view();
    wide.key = kKey;
    cpu::run(ops::Quantize{.source = wide_source, .transpose = transpose, .operand = wide});
    plain.key = kKey;
    cpu::run(ops::Quantize{.source = plain_source, .transpose = transpose, .operand = plain});
    if (by_codes) plain_source = {};  // is not read
    reference::FloatMatrix left(m, n), right(n, m), alone(m, n);
    cpu::run(ops::Gemm{gemm, wide, plain, {}, false, left.view()});
    cpu::run(ops::Gemm{gemm, wide, plain, {}, false, alone.view()});
    cpu::run(ops::Gemm{gemm, plain, wide, {}, false, right.view()});
    cpu::run(
        ops::Compensate{wide, wide_source, transpose, plain, plain_source, transpose, left.view()});
    cpu::run(ops::Compensate{plain, plain_source, transpose, wide, wide_source, transpose,
                             right.view()});
    int wrong = 0, changed = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float exact = 0.0f;  // whole numbers below 2^24
        for (std::int64_t p = 0; p < k; ++p) exact += a.at(i, p) * b.at(j, p);
        wrong += at(left.view(), i, j) != exact;
        wrong += at(right.view(), j, i) != exact;
        changed += at(alone.view(), i, j) != exact;
      }
    }
    CHECK(wrong == 0);
    CHECK(changed > m * n / 2);
  }
}

TEST_CASE("in a product residuals meet the codes before rows are rotated back, tensors after") {
  const std::int64_t m = 16, n = 9, k = 64;
  Matrix a = whole_numbers(m, k, 1, 20), b = rare_outliers(n, k, 2);
  for (std::int64_t i = 0; i < m * k; ++i) a.set(i / k, i % k, 2.0f * a.at(i / k, i % k));
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_exact;
  gemm.output = DType::f32;
  for (const char* word : {"clamp:0.95:compensated", "clamp:0.95:compensated:quantized"}) {
    INFO(word);
    Operand rotated(whole("left:hadamard:4:+--+"), m, k);
    Clamped clamped(whole(word), n, k);
    rotated.key = kKey;
    cpu::run(ops::Quantize{.source = a.view(), .operand = rotated});
    clamped.key = kKey;
    cpu::run(ops::Quantize{.source = b.view(), .operand = clamped});
    reference::FloatMatrix d(m, n);
    const ops::Product product{
        {gemm, rotated, clamped, {}, false, d.view()}, a.view(), false, b.view(), false};
    product.for_each_part([](const auto& part) { cpu::run(part); });
    int wrong = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float exact = 0.0f;
        for (std::int64_t p = 0; p < k; ++p) exact += a.at(i, p) * b.at(j, p);
        wrong += at(d.view(), i, j) != exact;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("compensation rounds as it says: products, sums in ascending K, the result") {
  const bool by_codes = GENERATE(false, true);
  const std::int64_t m = 6, n = 5, k = 48;
  Matrix a(DType::f32, m, k), b(DType::bf16, n, k);
  fill_wide(a, 5);
  fill_wide(b, 6);
  for (std::int64_t p = 0; p < k; ++p) a.set(4, p, 0.0f);  // a row without outliers
  Clamped left(quantizer(numerics::kE4M3,
                         by_codes ? "clamp:0.8:compensated:quantized" : "clamp:0.8:compensated"),
               m, k);
  Operand right(quantizer(numerics::kE4M3, "none", {1, 16}), n, k);
  left.key = kKey;
  cpu::run(ops::Quantize{.source = a.view(), .operand = left});
  right.key = kKey;
  cpu::run(ops::Quantize{.source = b.view(), .operand = right});
  const auto other_at = [&](std::int64_t j, std::int64_t p) {
    if (!by_codes) return b.at(j, p);
    return right.scale(j, p / 16) * numerics::decode(numerics::kE4M3, right.code(j, p));
  };
  const ClampBounds bounds = sorted_bounds(a, 0.8);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Matrix d(dtype, m, n), start(dtype, m, n);
    fill_wide(start, 7);
    for (std::int64_t j = 0; j < n; ++j) start.set(4, j, -0.0f);
    for (std::int64_t i = 0; i < m * n; ++i) d.set(i / n, i % n, start.at(i / n, i % n));
    const TensorView out = d.view();
    cpu::run(ops::Compensate{left, a.view(), false, right, b.view(), false, out});
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        volatile float sum = 0.0f;
        bool any = false;
        for (std::int64_t p = 0; p < k; ++p) {
          const float residual = a.at(i, p) - std::clamp(a.at(i, p), bounds.lower, bounds.upper);
          if (residual == 0.0f) continue;
          const volatile float product = residual * other_at(j, p);
          sum = sum + product;
          any = true;
        }
        const float total = start.at(i, j) + sum;
        const float wanted = !any ? start.at(i, j) : total;
        const float got = dtype == DType::f32 ? out.row<float>(i)[j]
                                              : numerics::from_bf16(out.row<std::uint16_t>(i)[j]);
        const float rounded =
            dtype == DType::f32 ? wanted : numerics::from_bf16(numerics::to_bf16(wanted));
        INFO(i << " " << j);
        CHECK(float_bits(got) == float_bits(rounded));
      }
    }
  }
}

TEST_CASE("clamping helps FP4 activations with outliers, compensation more, and both by quantile") {
  Matrix x = with_outliers(64, 256, 9);
  for (std::int64_t i = 0; i < 64 * 256; ++i) {  // outliers here and there instead of by channel
    const std::uint32_t bits = random_word(3, static_cast<std::uint64_t>(i));
    const float value = x.at(i / 256, i % 256 == 0 ? 1 : i % 256);
    x.set(i / 256, i % 256,
          i % 32 == 5       ? x.at(i / 256, 7)
          : bits % 150 == 0 ? 25.0f * value
                            : value);
  }
  const auto statistics = [&](const std::string& transform) {
    Clamped operand(quantizer(numerics::kE2M1, transform, {1, 0}), 64, 256);
    operand.key = kKey;
    cpu::run(ops::Quantize{.source = x.view(), .operand = operand});
    return test::measure(x.view(), false, operand);
  };
  const OperandStatistics plain = statistics("none"), clamped = statistics("clamp:0.999"),
                          some = statistics("clamp:0.999:compensated"),
                          more = statistics("clamp:0.99:compensated"),
                          most = statistics("clamp:0.97:compensated");
  CHECK(some.sqnr_db > plain.sqnr_db);
  CHECK(some.sqnr_db > clamped.sqnr_db);
  CHECK(more.sqnr_db > some.sqnr_db + 2.0);
  CHECK(most.sqnr_db > more.sqnr_db);
  CHECK((plain.cosine < some.cosine && some.cosine < more.cosine && more.cosine < most.cosine));
  // Compensated errors are those of the clamped tensor; the source and its range stay.
  Matrix inside(DType::f32, 64, 256);
  const ClampBounds bounds = sorted_bounds(x, 0.99);
  for (std::int64_t i = 0; i < 64 * 256; ++i) {
    inside.set(i / 256, i % 256, std::clamp(x.at(i / 256, i % 256), bounds.lower, bounds.upper));
  }
  Operand operand(quantizer(numerics::kE2M1, "none", {1, 0}), 64, 256);
  operand.key = kKey;
  cpu::run(ops::Quantize{.source = inside.view(), .operand = operand});
  const OperandStatistics narrow = test::measure(inside.view(), false, operand);
  CHECK(more.mse == Approx(narrow.mse).epsilon(1e-5));
  CHECK(more.amax == plain.amax);
  CHECK(more.saturation_fraction > 0.005);
  CHECK(plain.saturation_fraction == 0.0);
}

TEST_CASE("clamps are refused where they cannot be kept apart") {
  GemmSpec gemm;
  gemm.accumulator = Accumulator::ideal_fp32;
  const auto refusal = [&](const char* a, const char* b) {
    return refuse_gemm(gemm, quantizer(numerics::kE4M3, a), quantizer(numerics::kE4M3, b), "x", "w")
        .value_or(ErrorFields{});
  };
  CHECK(refusal("clamp:0.99", "none") == ErrorFields{});
  CHECK(refusal("clamp:0.99", "clamp:0.9:compensated") == ErrorFields{});
  CHECK(refusal("clamp:0.99:compensated", "clamp:0.9:compensated").accepted ==
        "compensated in one of the two");
  CHECK_THAT(refusal("clamp:0.99", "hadamard:16").reason, Catch::Contains("do not cancel"));
  gemm.accumulator = Accumulator::sm100_mxf8f6f4;
  QuantSpec a = quantizer(numerics::kE4M3, "hadamard:32", {1, 32}), b = a;
  a.scale.format = b.scale.format = numerics::ScaleFormat::e8m0;
  CHECK(!refuse_gemm(gemm, a, b, "x", "w"));
  b.transform = {};
  REQUIRE(refuse_gemm(gemm, a, b, "x", "w"));
  CHECK(refuse_gemm(gemm, a, b, "x", "w")->key == "transform");

  Matrix x = whole_numbers(4, 16, 1, 9);
  Operand homeless(whole("clamp:0.9"), 4, 16);
  homeless.key = kKey;
  CHECK_THROWS_WITH(cpu::run(ops::Quantize{.source = x.view(), .operand = homeless}),
                    Catch::Contains("clamp:0.9 needs memory for its bounds"));
  Clamped left(whole("clamp:0.9:compensated"), 4, 16), other(whole("clamp:0.9:compensated"), 4, 16);
  Operand right(whole("none"), 4, 16);
  reference::FloatMatrix d(4, 4), narrow(4, 3);
  CHECK_THROWS_WITH(
      cpu::run(ops::Compensate{left, x.view(), false, other, x.view(), false, d.view()}),
      Catch::Contains("exactly one operand"));
  CHECK_THROWS_WITH(
      cpu::run(ops::Compensate{left, x.view(), false, right, x.view(), false, narrow.view()}),
      Catch::Contains("D is f32 (4, 3)"));
  CHECK_THROWS_WITH(
      cpu::run(ops::Compensate{left, x.view(), true, right, x.view(), false, d.view()}),
      Catch::Contains("A is f32 (4, 16), expected bf16 or f32 (16, 4)"));
}

}  // namespace
}  // namespace fp8lab
