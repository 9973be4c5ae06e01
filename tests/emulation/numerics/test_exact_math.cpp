#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "emulation/numerics/exact_math.hpp"

namespace numerics = fp8lab::numerics;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits(float value) { return numerics::float_bits(value); }

// Distance in units of the last place of the FP32 grid at the exact value.
double ulps(float got, double exact) {
  const int exponent = exact == 0.0 ? -149 : std::max(std::ilogb(exact), -126) - 23;
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent);
}

// Fuller than FP32 by far: their errors count as less than 1e-7 ulp. The accuracy test compares
// with MPFR where it is installed.
double exact_exp2(double x) { return std::exp2(x); }
double exact_log2(double x) { return std::log2(x); }
double exact_log(double x) { return std::log(x); }
double exact_rsqrt(double x) { return 1.0 / std::sqrt(x); }

template <class Got, class Exact, class Visit>
double worst_error(std::uint32_t first, std::uint32_t last, std::uint32_t step, Got got,
                   Exact exact, Visit accept) {
  double worst = 0.0;
  for (std::uint64_t pattern = first; pattern < last; pattern += step) {
    const float x = numerics::bits_float(static_cast<std::uint32_t>(pattern));
    if (accept(x)) worst = std::max(worst, ulps(got(x), exact(static_cast<double>(x))));
  }
  return worst;
}

const auto kAny = [](float) { return true; };

}  // namespace

TEST_CASE("exp2 stays within 1 ulp, subnormal results included") {
  // |x| from 2^-30 to 150; beyond -126 the results are subnormal.
  const auto in_range = [](float x) { return x > -150.0f && x < 128.0f; };
  const std::uint32_t first = bits(0x1p-30f);
  const std::uint32_t last = bits(150.0f);
  CHECK(worst_error(first, last, 1009, numerics::exp2, exact_exp2, in_range) < 1.0);
  const std::uint32_t sign = 0x80000000u;
  CHECK(worst_error(first | sign, last | sign, 1009, numerics::exp2, exact_exp2, in_range) < 1.0);
}

TEST_CASE("exp2 has the right limits") {
  for (int n = -149; n <= 127; ++n) {
    CHECK(numerics::exp2(static_cast<float>(n)) == std::ldexp(1.0f, n));
  }
  CHECK(numerics::exp2(128.0f) == kInfinity);
  CHECK(numerics::exp2(0x1.FFFFFEp6f) < kInfinity);
  CHECK(bits(numerics::exp2(-150.0f)) == 0u);
  CHECK(numerics::exp2(-0x1.2BFFFEp7f) == 0x1p-149f);
  CHECK(numerics::exp2(1e30f) == kInfinity);
  CHECK(bits(numerics::exp2(-1e30f)) == 0u);
  CHECK(numerics::exp2(kInfinity) == kInfinity);
  CHECK(bits(numerics::exp2(-kInfinity)) == 0u);
  CHECK(numerics::exp2(-0.0f) == 1.0f);
  CHECK(bits(numerics::exp2(numerics::bits_float(0xFFC12345u))) == numerics::kF32NaN);
}

TEST_CASE("exp2 in fewer operations has the same bits where it is meant for") {
  const std::uint32_t last = bits(numerics::kExp2Normal);
  std::uint64_t different = 0;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (std::uint32_t pattern = 0; pattern < last + 97; pattern += 97) {
      const float x = numerics::bits_float(std::min(pattern, last) | sign);
      different += bits(numerics::exp2_normal(x)) != bits(numerics::exp2(x));
    }
  }
  CHECK(different == 0);
}

TEST_CASE("log2 stays within 1 ulp of every positive float") {
  CHECK(worst_error(1, 0x7F800000u, 9973, numerics::log2, exact_log2, kAny) < 1.0);
  // Next to 1, where the result is small.
  CHECK(worst_error(bits(0.999f), bits(1.001f), 7, numerics::log2, exact_log2, kAny) < 1.0);
}

TEST_CASE("log stays within 2 ulp of every positive float") {
  CHECK(worst_error(1, 0x7F800000u, 9973, numerics::log, exact_log, kAny) < 2.0);
  CHECK(worst_error(bits(0.999f), bits(1.001f), 7, numerics::log, exact_log, kAny) < 2.0);
}

TEST_CASE("log2 and log have the right limits") {
  for (int n = -149; n <= 127; ++n) {
    CHECK(numerics::log2(std::ldexp(1.0f, n)) == static_cast<float>(n));
  }
  for (const auto function : {&numerics::log2, &numerics::log}) {
    CHECK(bits(function(1.0f)) == 0u);
    CHECK(function(0.0f) == -kInfinity);
    CHECK(function(-0.0f) == -kInfinity);
    CHECK(function(kInfinity) == kInfinity);
    CHECK(bits(function(-1.0f)) == numerics::kF32NaN);
    CHECK(bits(function(-0x1p-149f)) == numerics::kF32NaN);
    CHECK(bits(function(-kInfinity)) == numerics::kF32NaN);
    CHECK(bits(function(numerics::bits_float(0xFFC00001u))) == numerics::kF32NaN);
  }
}

TEST_CASE("rsqrt stays within 1.5 ulp") {
  CHECK(worst_error(1, 0x7F800000u, 9973, numerics::rsqrt, exact_rsqrt, kAny) < 1.5);
  CHECK(numerics::rsqrt(4.0f) == 0.5f);
  CHECK(numerics::rsqrt(0.0f) == kInfinity);
  CHECK(numerics::rsqrt(kInfinity) == 0.0f);
  CHECK(bits(numerics::rsqrt(-1.0f)) == numerics::kF32NaN);
}

TEST_CASE("sigmoid and silu stay within the stated relative error") {
  for (std::uint64_t pattern = 0; pattern < 0x100000000u; pattern += 99991) {
    const float x = numerics::bits_float(static_cast<std::uint32_t>(pattern));
    if (!(std::abs(x) < 87.0f)) continue;
    const double exact = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
    const double bound = (2.0 + std::abs(static_cast<double>(x))) * 0x1p-23;
    REQUIRE(std::abs(static_cast<double>(numerics::sigmoid(x)) / exact - 1.0) < bound);
    REQUIRE(numerics::silu(x) == x * numerics::sigmoid(x));
  }
  CHECK(numerics::sigmoid(0.0f) == 0.5f);
  CHECK(numerics::sigmoid(kInfinity) == 1.0f);
  CHECK(numerics::sigmoid(-kInfinity) == 0.0f);
  CHECK(numerics::silu(kInfinity) == kInfinity);
  CHECK(bits(numerics::silu(-kInfinity)) == numerics::kF32NaN);
  CHECK(bits(numerics::silu(numerics::bits_float(0xFFC00001u))) == numerics::kF32NaN);
}

TEST_CASE("fused multiply-add without the instruction rounds once") {
  std::mt19937 random(2024);
  const auto any = [&] { return numerics::bits_float(static_cast<std::uint32_t>(random())); };
  const auto with_field = [&](std::uint32_t lowest, std::uint32_t count) {
    const std::uint32_t field = lowest + static_cast<std::uint32_t>(random()) % count;
    return numerics::bits_float((static_cast<std::uint32_t>(random()) & 0x807FFFFFu) | field << 23);
  };
  for (int i = 0; i < 2000000; ++i) {
    float a = any();
    float b = any();
    float c = any();
    if (i % 5 == 1) c = -(a * b) * (1.0f + static_cast<float>(i % 64 - 32) * 0x1p-23f);
    if (i % 5 == 2) {  // results around the smallest normal number
      a = with_field(60, 20);
      b = with_field(40, 40);
      c = with_field(0, 40);
    }
    if (i % 5 == 3) {  // products of at most 26 bits, often a tie, and an addend far below them
      a = numerics::bits_float(bits(with_field(120, 16)) & 0xFFFFF800u);
      b = numerics::bits_float(bits(with_field(120, 16)) & 0xFFFFF800u);
      c = with_field(1, 100);
    }
    if (i % 5 == 4) {  // a tie of the sum, missed by 2^-46 of the product on either side
      const float tilt = i % 2 == 0 ? 0x1p-23f : 0.0f;
      c = numerics::bits_float(bits(with_field(127, 1)) | 1u);
      a = (1.0f - tilt) * 0x1p-12f;
      b = std::copysign((1.0f + 0x1p-23f) * 0x1p-12f, with_field(127, 1));
    }
    const float got = numerics::fma_by_round_to_odd(a, b, c);
    const float expected = std::fma(a, b, c);
    REQUIRE(bits(numerics::canonical_nan(got)) == bits(numerics::canonical_nan(expected)));
  }
}

TEST_CASE("the bits of the FP32 functions are the definition") {
  // Other processors and the CUDA kernels have to return exactly these results, and a change of one
  // bit changes every run. FNV-1a over the results for every 65521st bit pattern.
  const auto fingerprint = [](float (*function)(float)) {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (std::uint64_t pattern = 0; pattern < 0x100000000u; pattern += 65521) {
      const float x = numerics::bits_float(static_cast<std::uint32_t>(pattern));
      hash = (hash ^ bits(function(x))) * 0x100000001B3u;
    }
    return hash;
  };
  CHECK(fingerprint(&numerics::exp2) == 0x6D175BF334AA8D4Eu);
  CHECK(fingerprint(&numerics::log2) == 0xFF1CE8559F817ED4u);
  CHECK(fingerprint(&numerics::log) == 0x2F6DBBE743DF31AEu);
  CHECK(fingerprint(&numerics::rsqrt) == 0xD28ED60810994252u);
  CHECK(fingerprint(&numerics::sigmoid) == 0xAD4D79A5F3514142u);
  CHECK(fingerprint(&numerics::silu) == 0x4CDF9BD79F649D8Au);
}

TEST_CASE("FP64 functions for tables") {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  for (int i = 0; i < 100000; ++i) {
    const double angle = unit(random) * (i % 3 == 0 ? 1048576.0 : i % 3 == 1 ? 1000.0 : 1.0);
    const numerics::SinCos turn = numerics::sincos_f64(angle);
    const long double wide = static_cast<long double>(angle);
    REQUIRE(std::abs(turn.sin - static_cast<double>(std::sin(wide))) < 4e-16);
    REQUIRE(std::abs(turn.cos - static_cast<double>(std::cos(wide))) < 4e-16);
    const double x = unit(random) * 40.0 - 20.0;
    REQUIRE(std::abs(numerics::exp2_f64(x) /
                         static_cast<double>(std::exp2(static_cast<long double>(x))) -
                     1.0) < 1e-15);
    const double y = std::exp(x);
    REQUIRE(std::abs(numerics::log2_f64(y) - std::log2(y)) <
            4e-16 * std::max(1.0, std::abs(std::log2(y))));
    const double base = 10000.0 * (1.0 + 100.0 * unit(random));
    const double power = -unit(random);
    const long double exact =
        std::pow(static_cast<long double>(base), static_cast<long double>(power));
    REQUIRE(std::abs(numerics::pow_f64(base, power) / static_cast<double>(exact) - 1.0) < 1e-15);
  }
  constexpr numerics::SinCos kZero = numerics::sincos_f64(0.0);
  static_assert(kZero.sin == 0.0 && kZero.cos == 1.0);
  static_assert(numerics::pow_f64(2.0, -3.0) == 0.125 && numerics::log2_f64(8.0) == 3.0);
  CHECK(numerics::sincos_f64(-1.0).sin == -numerics::sincos_f64(1.0).sin);
  CHECK(numerics::exp2_f64(10.0) == 1024.0);
}
