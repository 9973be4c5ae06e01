#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <catch2/catch.hpp>

#include "emulation/numerics/attention_weight.hpp"

namespace {

namespace numerics = fp8lab::numerics;

std::uint32_t bits(float x) { return numerics::float_bits(x); }
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("attention_weight is within 2^-18 of the power of two") {
  double worst = 0.0;
  const auto compare = [&](float d) {
    const double exact = std::exp2(-static_cast<double>(d));
    worst =
        std::max(worst, std::abs(static_cast<double>(numerics::attention_weight(d)) / exact - 1));
  };
  for (std::uint32_t pattern = bits(0x1p-30f); pattern < bits(126.0f); pattern += 101) {
    compare(numerics::bits_float(pattern));
  }
  for (std::uint32_t pattern = 0; pattern <= bits(0.5f); pattern += 101) {
    compare(-numerics::bits_float(pattern));
  }
  CHECK(worst < 0x1p-18);
  CHECK(worst > 0x1p-19);
}

TEST_CASE("attention_weight of integers is exact") {
  for (int n = 0; n <= 149; ++n) {
    CHECK(numerics::attention_weight(static_cast<float>(n)) == std::ldexp(1.0f, -n));
  }
  CHECK(bits(numerics::attention_weight(-0.0f)) == bits(1.0f));
  CHECK(bits(numerics::attention_weight(0x1p-149f)) == bits(1.0f));
}

TEST_CASE("attention_weight has the right limits") {
  // 2^-149.5 is rounded up, 2^-150 is a tie with zero.
  CHECK(numerics::attention_weight(149.5f) == 0x1p-149f);
  for (const float d : {150.0f, 151.0f, 159.0f, 160.0f, 161.0f, 1e30f, kInfinity}) {
    CHECK(bits(numerics::attention_weight(d)) == 0u);
  }
  const float most = numerics::attention_weight(-0.5f);
  CHECK(std::abs(most - std::sqrt(2.0f)) < 0x1p-17f);
  for (const float d : {-0.75f, -1.0f, -200.0f, -1e30f, -kInfinity}) {
    CHECK(numerics::attention_weight(d) == most);
  }
  for (const std::uint32_t nan : {0x7FC00000u, 0xFFC00001u, 0x7F800001u}) {
    CHECK(bits(numerics::attention_weight(numerics::bits_float(nan))) == numerics::kF32NaN);
  }
}

TEST_CASE("weights of FP32 operands are those of exp2, with the same limits") {
  for (std::uint64_t pattern = 0; pattern < 0x100000000u; pattern += 99991) {
    const float d = numerics::bits_float(static_cast<std::uint32_t>(pattern));
    const float bounded = d < -0.5f ? -0.5f : d;
    REQUIRE(bits(numerics::wide_attention_weight(d)) == bits(numerics::exp2(-bounded)));
    if (!(d > -0.5f && d < 126.0f)) continue;
    const auto wide = static_cast<double>(numerics::wide_attention_weight(d));
    REQUIRE(std::abs(static_cast<double>(numerics::attention_weight(d)) / wide - 1) < 0x1p-18);
  }
}

TEST_CASE("attention_weight in fewer operations has the same bits where it is meant for") {
  std::uint64_t different = 0;
  const auto compare = [&](float d) {
    different += bits(numerics::normal_attention_weight(d)) != bits(numerics::attention_weight(d));
  };
  const std::uint32_t last = bits(numerics::kNormalWeight);
  for (std::uint32_t pattern = 0; pattern < last + 61; pattern += 61) {
    compare(numerics::bits_float(std::min(pattern, last)));
  }
  for (std::uint32_t pattern = 0; pattern <= bits(0.5f); pattern += 61) {
    compare(-numerics::bits_float(pattern));
  }
  CHECK(different == 0);
}

TEST_CASE("scores near their reference are not more than a half above it") {
  // The reference is the largest score, scaled and rounded to FP32.
  std::uint32_t word = 12345u;
  float lowest = 0.0f;
  for (int i = 0; i < 2000000; ++i) {
    word = word * 1664525u + 1013904223u;
    const float scale = 0x1.0p-4f + static_cast<float>(word >> 8) * 0x1p-26f;
    word = word * 1664525u + 1013904223u;
    const float product = std::ldexp(static_cast<float>(word >> 8), i % 6 - 1);
    const float reference = product * scale;
    if (reference >= numerics::kNearReference) continue;
    lowest = std::min(lowest, numerics::score_distance(product, scale, reference));
  }
  CHECK(lowest >= -0.5f);
  CHECK(lowest < 0.0f);
}

TEST_CASE("the bits of attention_weight are the definition") {
  // FNV-1a over the results for every 65521st bit pattern, as for exact_math.
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (std::uint64_t pattern = 0; pattern < 0x100000000u; pattern += 65521) {
    const float d = numerics::bits_float(static_cast<std::uint32_t>(pattern));
    hash = (hash ^ bits(numerics::attention_weight(d))) * 0x100000001B3u;
  }
  CHECK(hash == 0x5CE7CE5E94F4979Bu);
}
