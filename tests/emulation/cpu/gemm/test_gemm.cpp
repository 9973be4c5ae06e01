// The fast GEMM of every schedule, scale order and split-K against the scalar reference.
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "tests/emulation/cpu/gemm/gemm_problem.hpp"

namespace {

using namespace fp8lab;        // NOLINT: the subject of every line below
using namespace fp8lab::test;  // NOLINT
using numerics::FormatSpec;

/// 1, a factor that is no power of two, or 0.
float random_alpha(CaseGenerator& cases) {
  constexpr float kAlphas[] = {1.0f, 1.0f, 0.0441941738f, -3.7f, 0.0f};
  return kAlphas[cases.bits() % 5];
}

}  // namespace

TEST_CASE("FP8 GEMM with constant scales equals the reference") {
  CaseGenerator cases(11);
  const FormatSpec formats[] = {numerics::kE4M3, numerics::kE5M2};
  const TileShape tiles[] = {{0, 0}, {1, 0}};
  for (const FormatSpec& fa : formats) {
    for (const FormatSpec& fb : formats) {
      for (const TileShape& tile : tiles) {
        const QuantSpec a = quantized(fa, tile);
        QuantSpec b = quantized(fb, tile);
        if (cases.bits() % 4 == 0) b.scale_source = ScaleSource::none;
        for (const int interval : {0, 32, 96, 128}) {
          GemmSpec spec = fp8_spec(interval == 0 ? Schedule::fast : Schedule::promote, interval);
          spec.alpha = random_alpha(cases);
          check(cases, random_problem(cases, spec, a, b, 300));
        }
      }
    }
  }
}

TEST_CASE("FP8 GEMM with scales along K equals the reference in every order") {
  CaseGenerator cases(12);
  const TileShape tiles[][2] = {
      {{1, 128}, {1, 128}}, {{1, 128}, {128, 128}}, {{32, 32}, {1, 32}}, {{1, 64}, {0, 0}}};
  const ScaleOrder orders[] = {ScaleOrder::automatic, ScaleOrder::b_then_a, ScaleOrder::a_then_b,
                               ScaleOrder::product_first};
  for (const auto& tile : tiles) {
    for (const ScaleOrder order : orders) {
      GemmSpec spec = fp8_spec(Schedule::promote, static_cast<int>(tile[0].cols));
      spec.scale_order = order;
      spec.alpha = random_alpha(cases);
      check(cases, random_problem(cases, spec, quantized(numerics::kE4M3, tile[0]),
                                  quantized(numerics::kE5M2, tile[1]), 300));
    }
  }
}

TEST_CASE("ScaleOrder intervals below the tile use the tile's scale for each chunk") {
  CaseGenerator cases(23);
  const TileShape tiles[][2] = {
      {{1, 128}, {1, 128}}, {{1, 128}, {128, 128}}, {{128, 128}, {1, 128}}, {{1, 128}, {0, 0}}};
  for (const auto& tile : tiles) {
    const QuantSpec a = quantized(numerics::kE4M3, tile[0]);
    const QuantSpec b = quantized(numerics::kE5M2, tile[1]);
    for (const int interval : {32, 64, 128}) {
      for (const int split : {1, 2}) {
        GemmSpec spec = fp8_spec(Schedule::promote, interval);
        spec.split_k = split;
        Problem p = random_problem(cases, spec, a, b, 10);
        p.k = (split == 1 ? 256 : 512) + draw(cases, 1, 127);
        check(cases, p);
      }
    }
  }
}

TEST_CASE("Split-K equals the reference") {
  CaseGenerator cases(13);
  for (const int split : {2, 3}) {
    for (const bool blocks : {false, true}) {
      const TileShape tile = blocks ? TileShape{1, 128} : TileShape{};
      for (const Schedule schedule : {Schedule::promote, Schedule::fast}) {
        if (blocks && schedule == Schedule::fast) continue;
        GemmSpec spec = fp8_spec(schedule, 128);
        spec.split_k = split;
        spec.alpha = random_alpha(cases);
        Problem p = random_problem(cases, spec, quantized(numerics::kE4M3, tile),
                                   quantized(numerics::kE4M3, tile), 10);
        p.k = 128 * split + draw(cases, 1, 120);
        if (split == 3) p.k += 128 * 2;
        check(cases, p);
      }
    }
    GemmSpec bf16;
    bf16.split_k = split;
    Problem p = random_problem(cases, bf16, QuantSpec{}, QuantSpec{}, 10);
    p.k = 64 * (2 * split - 1) + draw(cases, 1, 60);
    check(cases, p);
  }
}

TEST_CASE("A scale that underflows to zero hides even NaN under split-K, and only there") {
  CaseGenerator cases(23);
  for (const int split : {1, 2}) {
    for (const bool accumulate : {false, true}) {
      Problem p{fp8_spec(Schedule::promote, 128),
                quantized(numerics::kE5M2, {}),
                quantized(numerics::kE5M2, {}),
                9,
                40,
                200};
      p.spec.split_k = split;
      p.spec.output = DType::f32;
      p.accumulate = accumulate;
      p.fixed_scale = 1e-30f;
      check(cases, p);
    }
  }
}

TEST_CASE("Formats narrower than the carrier are carried exactly") {
  CaseGenerator cases(14);
  for (const FormatSpec& format : {numerics::kE2M1, numerics::kE3M2, numerics::kE2M3}) {
    const QuantSpec a = quantized(format, {}), b = quantized(numerics::kE4M3, {1, 0});
    check(cases, random_problem(cases, fp8_spec(Schedule::promote, 128), a, b, 200));
    check(cases, random_problem(cases, GemmSpec{}, a, QuantSpec{}, 100));
  }
}

TEST_CASE("BF16 GEMM equals the reference") {
  CaseGenerator cases(15);
  for (int i = 0; i < 24; ++i) {
    GemmSpec spec;
    if (i % 3 == 1) {
      spec.schedule = Schedule::promote;
      spec.promote_interval = i % 2 == 0 ? 64 : 48;
    }
    const QuantSpec a = i % 4 == 3 ? quantized(numerics::kE4M3, {}) : QuantSpec{};
    check(cases, random_problem(cases, spec, a, QuantSpec{}, 150));
  }
}

TEST_CASE("Ideal FP32 GEMM equals the reference") {
  CaseGenerator cases(16);
  for (int i = 0; i < 8; ++i) {
    GemmSpec spec;
    spec.accumulator = Accumulator::ideal_fp32;
    if (i % 2 == 1) {
      spec.schedule = Schedule::promote;
      spec.promote_interval = 32;
    }
    const QuantSpec a = i % 4 == 3 ? quantized(numerics::kE4M3, {1, 0}) : QuantSpec{};
    check(cases, random_problem(cases, spec, a, QuantSpec{}, 120));
  }
}

TEST_CASE("A tile of every kind against every kind") {
  // One group a problem, so that nothing averages out; M and N leave short panels.
  CaseGenerator cases(18);
  for (const numerics::FormatSpec& right : {numerics::kE5M2, numerics::kE4M3}) {
    for (int ka = 0; ka < kCaseKinds; ++ka) {
      for (int kb = 0; kb < kCaseKinds; ++kb) {
        const std::int64_t rows = 5, k = 64;
        auto a = cases.tile<std::uint8_t>(numerics::kE4M3, static_cast<CaseKind>(ka), rows * k);
        auto b = cases.tile<std::uint8_t>(right, static_cast<CaseKind>(kb), rows * k);
        INFO("kinds " << ka << " and " << kb);
        check_operands(fp8_spec(Schedule::fast, 0), unscaled(numerics::kE4M3, a.data(), rows, k),
                       unscaled(right, b.data(), rows, k));
      }
    }
  }
}

TEST_CASE("32 E4M3 products of one exponent after a group of smaller ones") {
  // Every pair of exponents meets. Power sums must not carry: the addend, which the smaller ones
  // make, would be cut elsewhere. Rows and groups go beyond what such a kernel takes at a time.
  CaseGenerator cases(23);
  const std::int64_t rows = 130, k = 32 * 9 + 5;
  const auto operand = [&] {
    std::vector<std::uint8_t> codes;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto field = static_cast<std::uint32_t>(r % 16);
      for (std::int64_t l = 0; l < k; ++l) {
        const bool smaller = l / 32 % 2 == 0 && field > 0;
        const std::uint32_t own = smaller ? cases.bits() % field : field;
        const std::uint32_t magnitude = own << 3 | cases.bits() % 7;  // never NaN
        codes.push_back(static_cast<std::uint8_t>((cases.bits() & 0x80u) | magnitude));
      }
    }
    return codes;
  };
  auto a = operand(), b = operand();
  for (const GemmSpec& spec : {fp8_spec(Schedule::fast, 0), fp8_spec(Schedule::promote, 32),
                               fp8_spec(Schedule::promote, 64)}) {
    check_operands(spec, unscaled(numerics::kE4M3, a.data(), rows, k),
                   unscaled(numerics::kE4M3, b.data(), rows, k));
  }
}

TEST_CASE("Long FP8 chains keep the accumulator's exponent above the products'") {
  CaseGenerator cases(21);
  for (const numerics::FormatSpec& format : {numerics::kE5M2, numerics::kE4M3}) {
    for (const CaseKind kind : {CaseKind::near_max, CaseKind::narrow, CaseKind::one_large}) {
      const std::int64_t m = 3, n = 40, k = 4096;
      auto a = cases.tile<std::uint8_t>(format, kind, m * k);
      auto b = cases.tile<std::uint8_t>(format, kind, n * k);
      check_operands(fp8_spec(Schedule::fast, 0), unscaled(format, a.data(), m, k),
                     unscaled(format, b.data(), n, k));
    }
  }
}

TEST_CASE("Products of E5M2 subnormals alone are not cut") {
  CaseGenerator cases(24);
  const std::int64_t rows = 70, k = 32 * 3 + 9;
  const auto operand = [&] {
    std::vector<std::uint8_t> codes;
    for (std::int64_t i = 0; i < rows * k; ++i) {
      codes.push_back(static_cast<std::uint8_t>(cases.bits() & 0x83u));
    }
    return codes;
  };
  auto a = operand(), b = operand();
  for (const GemmSpec& spec : {fp8_spec(Schedule::fast, 0), fp8_spec(Schedule::promote, 32)}) {
    check_operands(spec, unscaled(numerics::kE5M2, a.data(), rows, k),
                   unscaled(numerics::kE5M2, b.data(), rows, k));
  }
}

TEST_CASE("The fast GEMM refuses what the reference refuses") {
  CaseGenerator cases(22);
  const TestOperand a(cases, quantized(numerics::kE4M3, {}), 3, 40, false);
  const TestOperand b(cases, quantized(numerics::kE4M3, {}), 2, 41, false);
  std::vector<std::uint16_t> d(6);
  const TensorView view{d.data(), DType::bf16, 3, 2, 2};
  const GemmSpec spec = fp8_spec(Schedule::promote, 128);
  REQUIRE_THROWS_AS(cpu::run(ops::Gemm{spec, a.get(), b.get(), {}, false, view}), Error);
  REQUIRE_THROWS_AS(cpu::run(ops::Gemm{spec, a.get(), a.get(), {}, false, view}), Error);
}
