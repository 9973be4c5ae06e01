// The fast BF16 chains of attention against the scalar reference, on every SIMD target.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

#include "emulation/cpu/attention/bf16_chain.hpp"
#include "emulation/numerics/mma.hpp"
#include "tests/emulation/cpu/gemm/gemm_problem.hpp"

namespace {

using namespace fp8lab;        // NOLINT: the subject of every line below
using namespace fp8lab::test;  // NOLINT

// Bf16Chain on a random part of a random panel, against fused_group element by element.
void check_chain(CaseGenerator& cases, const std::vector<std::uint16_t>& a,
                 const std::vector<std::uint16_t>& b, std::int64_t m, std::int64_t n,
                 std::int64_t k, const std::vector<float>& c) {
  const bool transpose_a = cases.bits() % 2 == 0, transpose_b = cases.bits() % 2 == 0;
  const std::int64_t k_first = draw(cases, 0, (k - 1) / 16) * 16,
                     k_count = draw(cases, 0, k - k_first);
  const std::int64_t n_first = draw(cases, 0, n - 1), n_count = draw(cases, 1, n - n_first);
  const cpu::Bf16Matrix left =
      transpose_a ? cpu::Bf16Matrix{a.data(), 1, m} : cpu::Bf16Matrix{a.data(), k, 1};
  const cpu::Bf16Matrix right =
      transpose_b ? cpu::Bf16Matrix{b.data(), 1, k} : cpu::Bf16Matrix{b.data(), n, 1};
  std::vector<float> want = c;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n_count; ++j) {
      float& out = want[static_cast<std::size_t>(i * n + n_first + j)];
      std::uint32_t accumulator = numerics::float_bits(out);
      for (std::int64_t l = 0; l < k_count; l += 16) {
        std::uint16_t x[16] = {}, y[16] = {};
        const int count = static_cast<int>(std::min<std::int64_t>(16, k_count - l));
        for (int q = 0; q < count; ++q) {
          x[q] = left.data[i * left.row_stride + (l + q) * left.col_stride];
          y[q] =
              right.data[(k_first + l + q) * right.row_stride + (n_first + j) * right.col_stride];
        }
        accumulator = numerics::fused_group(numerics::kSm90Bf16F32, numerics::kBF16,
                                            numerics::kBF16, x, y, count, accumulator);
      }
      out = numerics::bits_float(accumulator);
    }
  }
  const Restore restore;
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    cpu::set_active_target(target);
    cpu::Bf16Panel panel;
    cpu::Bf16Chain chain;
    panel.pack(right, k, n);
    std::vector<float> got = c;
    chain.multiply(left, m, panel, k_first, k_count, n_first, n_count, got.data() + n_first, n);
    INFO(name_of(target) << " m " << m << " n " << n_first << "+" << n_count << " of " << n << " k "
                         << k_first << "+" << k_count << " of " << k);
    REQUIRE(first_mismatch(bytes_of(got.data(), got.size() * 4),
                           bytes_of(want.data(), want.size() * 4), n, 4) == "");
  }
}

}  // namespace

TEST_CASE("BF16 chains start from any accumulator and take any part of a panel") {
  CaseGenerator cases(19);
  for (int i = 0; i < 80; ++i) {
    const std::int64_t m = draw(cases, 1, 20), n = draw(cases, 1, 70), k = draw(cases, 1, 70);
    const bool specials = i % 5 == 0;
    const auto a = cases.codes<std::uint16_t>(numerics::kBF16, m, k, 4, 16, specials);
    const auto b = cases.codes<std::uint16_t>(numerics::kBF16, k, n, 16, 8, specials);
    std::vector<float> c;
    for (std::int64_t j = 0; j < m * n; ++j) c.push_back(cases.accumulator());
    if (specials) c[0] = numerics::bits_float(i % 2 == 0 ? 0xFF800000u : 0xFFC00001u);
    check_chain(cases, a, b, m, n, k, c);
  }
}

TEST_CASE("BF16 chains at the limits of their arithmetic") {
  CaseGenerator cases(20);
  const std::int64_t m = 4, n = 33, k = 32;
  const auto fill = [&](std::uint16_t base, std::uint16_t spread, bool one_sign) {
    std::vector<std::uint16_t> values;
    for (std::int64_t i = 0; i < n * k; ++i) {
      const auto offset = static_cast<std::uint32_t>(cases.bits() % (spread + 1u));
      const std::uint32_t sign = one_sign ? 0u : (cases.bits() & 0x8000u);
      values.push_back(static_cast<std::uint16_t>((base - offset) | sign));
    }
    return values;
  };
  struct Limits {
    std::uint16_t a, b, spread;
    std::uint32_t c;  ///< FP32 bits
    bool one_sign;
  };
  const Limits limits[] = {
      {0x3FFF, 0x3FFF, 0, 0x407FFFFFu, true},     // every term just below 4 * 2^emax: |S| near 2^32
      {0x3FFF, 0x3FFF, 0, 0xC07FFFFFu, true},     // the same against the largest negative addend
      {0x3FFF, 0xBFFF, 0, 0xC07FFFFFu, true},     // all negative
      {0x5FFF, 0x5FFF, 9, 0x7F7FFFFFu, true},     // results that overflow to infinity
      {0x5E80, 0x6080, 700, 0x7F000000u, false},  // around the window's upper end
      {0x1F00, 0x1E80, 700, 0x00800000u, false},  // emax around the floor -133
      {0x1E00, 0x1E00, 900, 0x00000001u, false},  // subnormal addends and results
      {0x1C00, 0x1C00, 900, 0x80000000u, false},  // underflow: every zero is +0
      {0x007F, 0x007F, 127, 0x00000000u, false},  // subnormal operands only
      {0x007F, 0x7F7F, 90, 0x3F800000u, false},   // subnormal times huge
  };
  for (const Limits& limit : limits) {
    for (int repeat = 0; repeat < 4; ++repeat) {
      std::vector<std::uint16_t> a = fill(limit.a, limit.spread, limit.one_sign);
      a.resize(static_cast<std::size_t>(m * k));
      const auto b = fill(limit.b, limit.spread, limit.one_sign);
      const std::vector<float> c(static_cast<std::size_t>(m * n), numerics::bits_float(limit.c));
      INFO("limits " << limit.a << " " << limit.b);
      check_chain(cases, a, b, m, n, k, c);
    }
  }
}
