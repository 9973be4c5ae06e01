// Hand-computed tensor-core groups, schedules and epilogues (emulation/specification.md).
#include <array>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "emulation/numerics/schedule.hpp"

namespace {

using namespace fp8lab::numerics;

// e4m3fn and e5m2 codes used below.
constexpr std::uint8_t kOne = 0x38;
constexpr std::uint8_t kMinusOne = 0xB8;
constexpr std::uint8_t kOneAndHalf = 0x3C;
constexpr std::uint8_t kMinusOneAndHalf = 0xBC;
constexpr std::uint8_t kTiny = 0x01;  // 2^-9, the smallest e4m3 subnormal
constexpr std::uint8_t kMax = 0x7E;   // 448
constexpr std::uint8_t kMinusMax = 0xFE;
constexpr std::uint8_t kNaN = 0x7F;
constexpr std::uint8_t kE5M2One = 0x3C;
constexpr std::uint8_t kE5M2Infinity = 0x7C;

constexpr std::uint32_t bits(float value) { return float_bits(value); }

template <std::size_t n>
constexpr std::uint32_t group(const GroupModel& model, const std::array<std::uint8_t, n>& a,
                              const std::array<std::uint8_t, n>& b, std::uint32_t c,
                              const FormatSpec& format = kE4M3) {
  return fused_group(model, format, format, a.data(), b.data(), static_cast<int>(n), c);
}

constexpr GroupModel kFp8 = kSm90WgmmaFp8F32;
using Pair = std::array<std::uint8_t, 2>;
using Single = std::array<std::uint8_t, 1>;

constexpr GroupModel with_fraction_bits(GroupModel model, int fraction_bits) {
  model.fraction_bits = fraction_bits;
  return model;
}

// The whole model is usable at compile time.
static_assert(group(kFp8, Pair{kOne, kOne}, Pair{kOne, kOneAndHalf}, 0u) == bits(2.5f));
static_assert(group(kFp8, Single{kOneAndHalf}, Single{kOneAndHalf}, bits(1.0f)) == bits(3.25f));

TEST_CASE("a product counts in emax at the sum of its exponents, un-normalised") {
  // 2.25 - 2.25 + 2^-13: emax is 0, not 1, so 2^-13 lies on the grid.
  constexpr Pair a{kOneAndHalf, kMinusOneAndHalf};
  constexpr Pair b{kOneAndHalf, kOneAndHalf};
  static_assert(group(kFp8, a, b, bits(0x1p-13f)) == bits(0x1p-13f));
  static_assert(group(kFp8, a, b, bits(0x1p-14f)) == 0u);
  GroupModel normalized = kFp8;
  normalized.normalize_products = true;
  CHECK(group(normalized, a, b, bits(0x1p-13f)) == 0u);
}

TEST_CASE("a subnormal keeps the exponent of the smallest normal number") {
  // 2^-9 * 1 counts at -6, so the grid is 2^-19 and c = 2^-20 is cut.
  static_assert(group(kFp8, Single{kTiny}, Single{kOne}, bits(0x1p-20f)) == bits(0x1p-9f));
  static_assert(group(kFp8, Single{kTiny}, Single{kOne}, bits(0x1p-19f)) ==
                bits(0x1p-9f + 0x1p-19f));
}

TEST_CASE("a zero product does not take part in emax") {
  static_assert(group(kFp8, Single{kMax}, Single{0}, bits(0x1p-20f)) == bits(0x1p-20f));
  GroupModel counting = kFp8;
  counting.zero_products_count = true;
  CHECK(group(counting, Single{kMax}, Single{0}, bits(0x1p-20f)) == 0u);
}

TEST_CASE("terms are truncated in magnitude, one by one, before the sum") {
  constexpr Single one{kOne};
  static_assert(group(kFp8, one, one, bits(-0x1p-14f)) == bits(1.0f));
  static_assert(group(kFp8, one, one, bits(-0x1.cp-13f)) == bits(1.0f - 0x1p-13f));
  // Two halves of a unit are both lost although their sum is one.
  constexpr std::array<std::uint8_t, 3> a{kOne, kTiny, kTiny};
  constexpr std::array<std::uint8_t, 3> b{kOne, 0x0Cu, 0x0Cu};  // 1.5 * 2^-6: products 1.5 * 2^-15
  static_assert(group(kFp8, a, b, 0u) == bits(1.0f));
  GroupModel rounding = kFp8;
  rounding.alignment = Alignment::nearest_even;
  CHECK(group(rounding, one, one, bits(-0x1.8p-14f)) != group(kFp8, one, one, bits(-0x1.8p-14f)));
}

TEST_CASE("the FP8 result keeps 13 mantissa bits after normalisation") {
  static_assert(group(kFp8, Single{kOneAndHalf}, Single{kOneAndHalf}, bits(0x1p-13f)) ==
                bits(2.25f));
  static_assert(group(kFp8, Single{0}, Single{0}, bits(1.0f + 0x1p-23f)) == bits(1.0f));
  static_assert(group(kFp8, Single{0}, Single{0}, bits(1.0f + 0x1p-13f)) == bits(1.0f + 0x1p-13f));
  CHECK(group(with_fraction_bits(kFp8, 12), Single{0}, Single{0}, bits(1.0f + 0x1p-13f)) ==
        bits(1.0f));
}

TEST_CASE("zero results are +0 and subnormals are kept") {
  constexpr std::uint32_t minus_zero = 0x80000000u;
  static_assert(group(kFp8, Single{0x80}, Single{kOne}, minus_zero) == 0u);
  static_assert(group(kFp8, Pair{kOne, kMinusOne}, Pair{kOne, kOne}, 0u) == 0u);
  static_assert(group(kFp8, Single{0}, Single{0}, 0x80000001u) == 0u);
  static_assert(group(kFp8, Single{0}, Single{0}, 0x00400000u) == 0x00400000u);
  static_assert(group(kFp8, Single{0}, Single{0}, 0x000007FFu) == 0x00000400u);  // cut at 2^-139
}

TEST_CASE("NaN and infinity follow the rules of section 3") {
  static_assert(group(kFp8, Single{kNaN}, Single{0}, 0u) == kF32NaN);
  static_assert(group(kFp8, Single{kOne}, Single{kOne}, 0xFFC00001u) == kF32NaN);
  static_assert(group(kFp8, Single{kOne}, Single{kOne}, 0xFF800000u) == 0xFF800000u);
  constexpr Single inf{kE5M2Infinity};
  static_assert(group(kFp8, inf, Single{kE5M2One}, 0u, kE5M2) == kF32Infinity);
  static_assert(group(kFp8, inf, Single{0xBC}, 0u, kE5M2) == 0xFF800000u);
  static_assert(group(kFp8, inf, Single{0}, 0u, kE5M2) == kF32NaN);
  static_assert(group(kFp8, inf, Single{kE5M2One}, 0xFF800000u, kE5M2) == kF32NaN);
  static_assert(group(kFp8, Pair{kE5M2Infinity, kE5M2Infinity}, Pair{kE5M2One, 0xBC}, 0u, kE5M2) ==
                kF32NaN);
  static_assert(group(kSm90WgmmaFp8F16, Single{kNaN}, Single{kOne}, 0u) == 0x7FFFu);
  SUCCEED();
}

TEST_CASE("overflow gives infinity although FP32 results are truncated") {
  constexpr std::uint16_t big[1] = {0x7F00};  // 2^127
  constexpr std::uint16_t one[1] = {0x3F80};
  constexpr std::uint16_t minus_one[1] = {0xBF80};
  static_assert(fused_group(kSm90Bf16F32, kBF16, kBF16, big, one, 1, 0x7F7FFFFFu) == kF32Infinity);
  static_assert(fused_group(kSm90Bf16F32, kBF16, kBF16, big, minus_one, 1, 0xFF7FFFFFu) ==
                0xFF800000u);
  SUCCEED();
}

TEST_CASE("an FP16 accumulator rounds to nearest even") {
  constexpr GroupModel f16 = kSm90WgmmaFp8F16;
  constexpr Single one{kOne};
  static_assert(group(f16, one, one, 0x6800u) == 0x6800u);  // 2049 -> 2048
  static_assert(group(f16, Pair{kOne, 0x40}, Pair{kOne, kOne}, 0x6800u) ==
                0x6802u);                                                     // 2051 -> 2052
  static_assert(group(f16, Single{0x40}, Single{0x50}, 0x7BFFu) == 0x7C00u);  // 65504 + 16
  static_assert(group(f16, Single{0x40}, Single{0x48}, 0x7BFFu) == 0x7BFFu);  // 65504 + 8
  static_assert(group(f16, Single{0}, Single{0}, 0x8001u) == 0x8001u);        // a subnormal
  SUCCEED();
}

TEST_CASE("the common exponent of bf16 groups has the floor -133") {
  // Fifteen products 2^-153 (1 + 2^-7) and one 2^-153 (1 - 15 * 2^-7): together 2^-149, but 2^-160
  // lies below the grid 2^-158 of the floor.
  std::array<std::uint16_t, 16> a;
  std::array<std::uint16_t, 16> b;
  a.fill(to_bf16(0x1.02p-80f));
  b.fill(to_bf16(0x1p-73f));
  a[15] = to_bf16(113.0f * 0x1p-87f);
  CHECK(fused_group(kSm90Bf16F32, kBF16, kBF16, a.data(), b.data(), 16, 0u) == 0u);
  GroupModel free = kSm90Bf16F32;
  free.min_exponent = kNoExponentFloor;
  CHECK(fused_group(free, kBF16, kBF16, a.data(), b.data(), 16, 0u) == 1u);
}

TEST_CASE("mma.sync FP8 adds C last and splits K by pairs") {
  constexpr auto f32 = OutputKind::f32_truncated;
  constexpr std::uint8_t one[1] = {kOne};
  static_assert(mma_sync_fp8(f32, kE4M3, kE4M3, one, one, 1, bits(0x1.8p-24f)) == 0x3F800001u);
  static_assert(mma_sync_fp8(f32, kE4M3, kE4M3, one, one, 1, bits(0x1p-24f)) == 0x3F800000u);
  // 448^2 - 448^2 cancel in the first half; 2^-18 survives in the other half only.
  constexpr std::uint8_t a[5] = {kMax, kMinusMax, kTiny, 0, 0};
  constexpr std::uint8_t b[5] = {kMax, kMax, kTiny, 0, 0};
  static_assert(mma_sync_fp8(f32, kE4M3, kE4M3, a, b, 5, 0u) == bits(0x1p-18f));
  constexpr std::uint8_t c[5] = {kMax, kMinusMax, 0, 0, kTiny};
  constexpr std::uint8_t d[5] = {kMax, kMax, 0, 0, kTiny};
  static_assert(mma_sync_fp8(f32, kE4M3, kE4M3, c, d, 5, 0u) == 0u);
  static_assert(mma_sync_fp8(f32, kE4M3, kE4M3, one, one, 1, 0xFF800000u) == 0xFF800000u);
  static_assert(mma_sync_fp8(OutputKind::f16_nearest, kE4M3, kE4M3, one, one, 1, 0x6800u) ==
                0x6800u);
  SUCCEED();
}

TEST_CASE("FP16 addition rounds to nearest even and keeps signed zeros") {
  static_assert(add_f16(0x8000u, 0x8000u) == 0x8000u);
  static_assert(add_f16(0x8000u, 0x0000u) == 0x0000u);
  static_assert(add_f16(0x3C00u, 0xBC00u) == 0x0000u);
  static_assert(add_f16(0x7BFFu, 0x4C00u) == 0x7C00u);
  static_assert(add_f16(0x7C00u, 0xFC00u) == 0x7FFFu);
  static_assert(add_f16(0x0001u, 0x0001u) == 0x0002u);
  SUCCEED();
}

TEST_CASE("promotion keeps what one chain loses") {
  // 128 products of 128, then 128 products of 1: on the grid 2 of the chain each 1 is cut.
  std::vector<std::uint8_t> a(256, 0x58);  // 16
  std::vector<std::uint8_t> b(256, 0x50);  // 8
  for (std::size_t k = 128; k < 256; ++k) a[k] = b[k] = kOne;
  ElementGemm spec;
  CHECK(accumulate_element(spec, a.data(), b.data(), 256, nullptr, nullptr) == 16384.0f);
  spec.promote_interval = 128;
  CHECK(accumulate_element(spec, a.data(), b.data(), 256, nullptr, nullptr) == 16512.0f);
  spec.unit = ChainUnit::ideal_fp32;
  spec.promote_interval = 0;
  CHECK(accumulate_element(spec, a.data(), b.data(), 256, nullptr, nullptr) == 16512.0f);
}

TEST_CASE("the two block-scale formulas round differently") {
  // acc = -(1 + 2^-22), then p = 1 with scales 1 + 2^-23: exact product 1 + 2^-22 + 2^-46.
  std::vector<std::uint8_t> a(256, 0);
  std::vector<std::uint8_t> b(256, kOne);
  a[0] = kMinusOne;
  a[128] = kOne;
  const float sa[2] = {1.0f, 1.0f + 0x1p-23f};
  const float sb[2] = {1.0f + 0x1p-22f, 1.0f + 0x1p-23f};
  ElementGemm spec;
  spec.promote_interval = spec.scale_width_a = spec.scale_width_b = 128;
  spec.order = ScaleOrder::b_then_a;
  CHECK(accumulate_element(spec, a.data(), b.data(), 256, sa, sb) == 0x1p-46f);
  spec.order = ScaleOrder::a_then_b;
  CHECK(accumulate_element(spec, a.data(), b.data(), 256, sa, sb) == 0x1p-46f);
  spec.order = ScaleOrder::product_first;
  CHECK(accumulate_element(spec, a.data(), b.data(), 256, sa, sb) == 0.0f);
  static_assert(promote(ScaleOrder::product_first, -3.0f, 3.0f, 1.0f + 0x1p-23f, 1.0f) ==
                3 * 0x1p-23f);  // fused
  // p = 3 shows which scale comes first: 3 * s rounds, then the other scale is exact in the fma.
  static_assert(promote(ScaleOrder::b_then_a, 0.0f, 3.0f, 3.0f, 1.0f + 0x1p-23f) !=
                promote(ScaleOrder::a_then_b, 0.0f, 3.0f, 3.0f, 1.0f + 0x1p-23f));
}

TEST_CASE("split-K ranges are whole blocks") {
  static_assert(split_range_width(8960, 128, 3, false) == 24 * 128);
  static_assert(split_range_width(18944, 128, 4, false) == 37 * 128);
  static_assert(split_range_width(18944, 128, 4, true) == 40 * 128);  // 37 -> 40: multiple of 4
  static_assert(split_range_width(6160, 128, 2, false) == 25 * 128);  // 48.125 blocks
  static_assert(split_range_width(4096, 64, 3, false) == 22 * 64);
  // Three ranges of one block: (2^24 + 1) + 1 left to right loses both ones.
  std::vector<std::uint16_t> a(192, 0);
  const std::vector<std::uint16_t> b(192, to_bf16(1.0f));
  a[0] = to_bf16(0x1p24f);
  a[64] = a[128] = to_bf16(1.0f);
  ElementGemm spec;
  spec.group = kSm90Bf16F32;
  spec.format_a = spec.format_b = kBF16;
  spec.range_width = 64;
  CHECK(accumulate_element(spec, a.data(), b.data(), 192, nullptr, nullptr) == 0x1p24f);
  // (2^24 + 2) + 1 is a tie that goes up to even; one chain truncates it.
  a[65] = to_bf16(1.0f);
  spec.range_width = 128;
  CHECK(accumulate_element(spec, a.data(), b.data(), 192, nullptr, nullptr) == 0x1p24f + 4.0f);
  spec.range_width = 0;
  CHECK(accumulate_element(spec, a.data(), b.data(), 192, nullptr, nullptr) == 0x1p24f + 2.0f);
}

TEST_CASE("the epilogues of one kernel and of split-K differ as measured") {
  Epilogue single;
  single.output = kFP32;
  Epilogue split = single;
  split.split_k = true;
  const auto value = [](const Epilogue& e, float acc, float c) {
    return finish_element(e, acc, 1.0f, 1.0f, c, nullptr);
  };
  const float nan = bits_float(kF32NaN);
  single.alpha = split.alpha = 0.0f;
  CHECK(value(single, nan, 0.0f) == kF32NaN);
  CHECK(value(split, nan, 0.0f) == 0u);
  single.alpha = split.alpha = -1.0f;
  CHECK(value(single, 0.0f, 0.0f) == 0u);
  CHECK(value(split, 0.0f, 0.0f) == 0x80000000u);
  CHECK(value(single, 5.0f, nan) == bits(-5.0f));  // beta = 0: c is not looked at
  // alpha * acc = 1 + 2^-11 + 2^-24 and beta * c = -1: which product rounds first shows.
  single.alpha = split.alpha = 1.0f + 0x1p-12f;
  single.beta = split.beta = -1.0f;
  const float acc = 1.0f + 0x1p-12f;
  CHECK(value(single, acc, 1.0f) == bits(0x1p-11f + 0x1p-24f));
  CHECK(value(split, acc, 1.0f) == bits(0x1p-11f));
  CHECK(value({EpilogueScales::none, false, -0.25f, 0.0f, kFP32}, 0x1p-149f, 0.0f) == 0x80000000u);
}

TEST_CASE("scales, bias and output conversion") {
  const float s = 1.0f + 0x1p-23f;
  Epilogue e{EpilogueScales::scalar, false, s, 0.0f, kFP32};
  const float acc = 3.0f;
  CHECK(finish_element(e, acc, s, 3.0f, 0.0f, nullptr) ==
        bits(__builtin_fmaf(acc, s * s * 3.0f, 0)));
  e.scales = EpilogueScales::outer;
  CHECK(finish_element(e, acc, s, 3.0f, 0.0f, nullptr) == bits(((acc * s) * 3.0f) * s));
  CHECK(bits(acc * ((s * s) * 3.0f)) != bits(((acc * s) * 3.0f) * s));
  // (3 sA) sB, not 3 (sA sB) nor (3 sB) sA, in units of 2^-23.
  e.alpha = 1.0f;
  CHECK(finish_element(e, acc, s, 1.0f + 0x3p-23f, 0.0f, nullptr) == bits(0x1.80000ep1f));
  CHECK(finish_element(e, acc, 1.0f + 0x3p-23f, s, 0.0f, nullptr) == bits(0x1.80000cp1f));
  const float bias = 0x1p-24f;
  e = {EpilogueScales::none, false, 1.0f, 0.0f, kFP32};
  CHECK(finish_element(e, 1.0f, 1.0f, 1.0f, 0.0f, &bias) == bits(1.0f));
  e = {EpilogueScales::none, false, 1.0f, 0.0f, kE4M3, 0.5f};
  CHECK(finish_element(e, 1000.0f, 1.0f, 1.0f, 0.0f, nullptr) == 0x7Eu);
  CHECK(finish_element(e, 2.0f, 1.0f, 1.0f, 0.0f, nullptr) == kOne);
  const float nan = bits_float(0xFFC00001u);
  CHECK(finish_element(e, nan, 1.0f, 1.0f, 0.0f, nullptr) == 0x7Fu);
  CHECK(finish_element({.output = kBF16}, nan, 1, 1, 0, nullptr) == 0x7FFFu);
  CHECK(finish_element({.output = kFP32}, nan, 1, 1, 0, nullptr) == kF32NaN);
  CHECK(finish_element({.output = kFP16}, 65520.0f, 1, 1, 0, nullptr) == 0x7C00u);
}

TEST_CASE("the exact sum rounds once") {
  const float values[5] = {0x1p60f, 1.0f, -0x1p60f, 0x1p-149f, -0x1p-149f};
  std::array<std::uint32_t, 5> a;
  std::array<std::uint32_t, 5> b;
  for (std::size_t i = 0; i < 5; ++i) {
    a[i] = bits(values[i]);
    b[i] = bits(i < 3 ? 1.0f : 0x1p-149f);
  }
  ElementGemm spec;
  spec.unit = ChainUnit::ideal_exact;
  spec.format_a = spec.format_b = kFP32;
  CHECK(accumulate_element(spec, a.data(), b.data(), 5, nullptr, nullptr) == 1.0f);
  spec.unit = ChainUnit::ideal_fp32;
  CHECK(accumulate_element(spec, a.data(), b.data(), 5, nullptr, nullptr) == 0.0f);

  constexpr auto sum = [](std::initializer_list<std::array<float, 2>> products) {
    ExactSum exact;
    for (const auto& p : products) exact.add_product(p[0], p[1]);
    return exact.rounded();
  };
  static_assert(sum({{1.0f, 1.0f}, {0x1p-24f, 1.0f}}) == 0x3F800000u);  // a tie, to even
  static_assert(sum({{1.0f, 1.0f}, {0x1p-24f, 1.0f}, {0x1p-149f, 0x1p-149f}}) == 0x3F800001u);
  static_assert(sum({{-1.0f, 1.0f}, {-0x1.8p-23f, 1.0f}}) == 0xBF800002u);
  static_assert(sum({{0x1.fffffep127f, 2.0f}, {-0x1.fffffep127f, 1.0f}}) == 0x7F7FFFFFu);
  static_assert(sum({{0x1.fffffep127f, 2.0f}}) == kF32Infinity);
  static_assert(sum({{0x1p-75f, 0x1p-75f}}) == 0u);  // half of 2^-149
  static_assert(sum({{0x1.8p-75f, 0x1p-75f}}) == 1u);
  static_assert(sum({{-1.0f, 0.0f}, {1.0f, 1.0f}, {-1.0f, 1.0f}}) == 0u);  // +0
  CHECK(sum({{bits_float(kF32Infinity), 0.0f}}) == kF32NaN);
  CHECK(sum({{bits_float(kF32Infinity), -1.0f}, {3.0f, 1.0f}}) == 0xFF800000u);
}

TEST_CASE("the integer fma is the fma") {
  static_assert(fma_f32(0x1p-149f, -0.25f, 0.0f) == 0.0f);
  static_assert(float_bits(fma_f32(0x1p-149f, -0.25f, 0.0f)) == 0x80000000u);
  static_assert(float_bits(fma_f32(-0.0f, 1.0f, -0.0f)) == 0x80000000u);
  static_assert(float_bits(fma_f32(-0.0f, 1.0f, 0.0f)) == 0u);
  std::uint32_t state = 7;
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  std::vector<std::uint32_t> values = {0u, 0x80000000u, 1u, 0x7F7FFFFFu, 0x7F800000u, 0xFF800000u};
  for (int i = 0; i < 60; ++i) {
    values.push_back(next() ^ next() >> 16);                        // any exponent
    values.push_back(0x3F800000u ^ ((next() >> 8 & 0x80800FFFu)));  // near 1
  }
  int differences = 0;
  for (const std::uint32_t x : values) {
    for (const std::uint32_t y : values) {
      for (const std::uint32_t z : values) {
        const float exact = fma_exact(bits_float(x), bits_float(y), bits_float(z));
        const float builtin = __builtin_fmaf(bits_float(x), bits_float(y), bits_float(z));
        const bool both_nan = exact != exact && builtin != builtin;
        differences += !both_nan && float_bits(exact) != float_bits(builtin) ? 1 : 0;
      }
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("the exact sum agrees with doubles where those are exact") {
  std::uint32_t state = 1;
  std::array<std::uint8_t, 100> a;
  std::array<std::uint8_t, 100> b;
  ElementGemm spec;
  spec.unit = ChainUnit::ideal_exact;
  for (int round = 0; round < 200; ++round) {
    double sum = 0.0;  // multiples of 2^-18 below 2^25
    for (std::size_t k = 0; k < a.size(); ++k) {
      state = state * 1664525u + 1013904223u;
      a[k] = static_cast<std::uint8_t>(state >> 24 & 0xFEu);
      b[k] = static_cast<std::uint8_t>(state >> 16 & 0xFEu);
      sum += static_cast<double>(decode(kE4M3, a[k])) * static_cast<double>(decode(kE4M3, b[k]));
    }
    const float exact = accumulate_element(spec, a.data(), b.data(), 100, nullptr, nullptr);
    REQUIRE(exact == static_cast<float>(sum));
  }
}

}  // namespace
