// The fast GEMM and the fast BF16 chains against the scalar reference: every bit, on every SIMD
// target and for several numbers of threads.
#include <omp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "emulation/api/error.hpp"
#include "emulation/api/tensor_core.hpp"
#include "emulation/cpu/bf16_chain.hpp"
#include "emulation/cpu/gemm.hpp"
#include "emulation/cpu/gemm_operand.hpp"
#include "emulation/cpu/gemm_reference.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/numerics/mma.hpp"
#include "src/validate/case_generator.hpp"

namespace {

using namespace fp8lab;  // NOLINT: the subject of every line below
using numerics::FormatSpec;

// Restores the SIMD target and the number of threads.
struct Restore {
  cpu::SimdTarget target = cpu::active_target();
  int threads = omp_get_max_threads();
  ~Restore() {
    cpu::set_active_target(target);
    omp_set_num_threads(threads);
  }
};

std::vector<std::byte> bytes_of(const void* data, std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), data, size);
  return bytes;
}

// Operand memory with a row stride larger than K, and its scales.
class TestOperand {
 public:
  TestOperand(CaseGenerator& cases, const QuantSpec& spec, std::int64_t rows, std::int64_t k,
              bool specials, float fixed_scale = 0.0f) {
    operand_.spec = spec;
    operand_.rows = rows;
    operand_.k = k;
    const std::int64_t stride = k + 3;
    const DType stored = spec.storage();
    const std::size_t size = size_of(stored);
    codes_.resize(static_cast<std::size_t>(rows * stride) * size, std::byte{0x7F});
    const auto fill = [&](const auto& values) {
      for (std::int64_t r = 0; r < rows; ++r) {
        std::memcpy(codes_.data() + static_cast<std::size_t>(r * stride) * size,
                    values.data() + r * k, static_cast<std::size_t>(k) * size);
      }
    };
    if (stored == DType::u8) {
      fill(cases.codes<std::uint8_t>(spec.format, rows, k, 3, 16, specials));
    } else if (stored == DType::bf16) {
      fill(cases.codes<std::uint16_t>(spec.format, rows, k, 3, 16, specials));
    } else {
      std::vector<float> values;
      for (const auto code : cases.codes<std::uint32_t>(spec.format, rows, k, 3, 16, specials)) {
        values.push_back(numerics::decode(spec.format, code));
      }
      fill(values);
    }
    operand_.codes = {codes_.data(), stored, rows, k, stride};
    if (!spec.has_scale()) return;
    const std::int64_t scale_rows = spec.tile_rows(rows);
    const std::int64_t scale_cols = spec.tile_cols(k);
    for (std::int64_t i = 0; i < scale_rows * scale_cols; ++i) {
      scales_.push_back(fixed_scale == 0.0f ? draw_scale(cases, spec) : fixed_scale);
    }
    operand_.scales = {scales_.data(), DType::f32, scale_rows, scale_cols, scale_cols};
  }
  TestOperand(const TestOperand&) = delete;
  TestOperand& operator=(const TestOperand&) = delete;
  const QuantizedOperand& get() const { return operand_; }

 private:
  // Half of the E8M0 scales lie near 1, so that groups of several terms meet; one in 64 is NaN.
  static float draw_scale(CaseGenerator& cases, const QuantSpec& spec) {
    const std::uint32_t bits = cases.bits();
    switch (spec.scale.format) {
      case numerics::ScaleFormat::e8m0:
        if (bits % 64 == 0) return numerics::decode(numerics::kE8M0, 255);
        return numerics::decode(numerics::kE8M0,
                                bits % 2 == 0 ? 120 + (bits >> 8) % 15 : (bits >> 8) % 255);
      case numerics::ScaleFormat::e4m3: return numerics::decode(numerics::kE4M3, (bits >> 8) % 128);
      default: return cases.scale();
    }
  }

  QuantizedOperand operand_;
  std::vector<std::byte> codes_;
  std::vector<float> scales_;
};

QuantSpec quantized(const FormatSpec& format, TileShape tile, bool with_scale = true) {
  QuantSpec spec;
  spec.format = format;
  spec.tile = tile;
  spec.scale_source = with_scale ? ScaleSource::current : ScaleSource::none;
  return spec;
}

struct Problem {
  GemmSpec spec;
  QuantSpec a, b;
  std::int64_t m, n, k;
  bool accumulate = false;
  DType bias = DType::u8;  ///< u8: none
  bool specials = true;
  float fixed_scale = 0.0f;  ///< 0: drawn
};

std::string describe(const Problem& p) {
  return label(p.spec) + " " + label(p.a) + " x " + label(p.b) + " " + std::to_string(p.m) + "x" +
         std::to_string(p.n) + "x" + std::to_string(p.k) + (p.accumulate ? " accumulate" : "") +
         " split " + std::to_string(p.spec.split_k) + " order " +
         std::to_string(static_cast<int>(p.spec.scale_order));
}

std::string first_mismatch(const std::vector<std::byte>& got, const std::vector<std::byte>& want,
                           std::int64_t stride, std::size_t size) {
  for (std::size_t i = 0; i < want.size(); i += size) {
    if (std::memcmp(&got[i], &want[i], size) == 0) continue;
    std::uint32_t x = 0, y = 0;
    std::memcpy(&x, &got[i], size);
    std::memcpy(&y, &want[i], size);
    const auto element = static_cast<std::int64_t>(i / size);
    char text[128];
    std::snprintf(text, sizeof text, "element (%ld, %ld): %08x, reference %08x",
                  static_cast<long>(element / stride), static_cast<long>(element % stride), x, y);
    return text;
  }
  return {};
}

// Runs the reference once and the fast GEMM on every target, with other numbers of threads on the
// fastest; the output has a guarded margin.
void check(CaseGenerator& cases, const Problem& p) {
  INFO(describe(p));
  const TestOperand a(cases, p.a, p.m, p.k, p.specials, p.fixed_scale);
  const TestOperand b(cases, p.b, p.n, p.k, p.specials, p.fixed_scale);
  std::vector<float> bias_f32;
  std::vector<std::uint16_t> bias_bf16;
  for (std::int64_t j = 0; j < p.n; ++j) {
    bias_f32.push_back(cases.accumulator());
    bias_bf16.push_back(numerics::to_bf16(bias_f32.back()));
  }
  TensorView bias;
  if (p.bias == DType::f32) bias = {bias_f32.data(), DType::f32, 1, p.n, p.n};
  if (p.bias == DType::bf16) bias = {bias_bf16.data(), DType::bf16, 1, p.n, p.n};

  const std::int64_t stride = p.n + 2;
  const std::size_t size = size_of(p.spec.output);
  std::vector<float> initial;
  for (std::int64_t i = 0; i < p.m * stride; ++i) initial.push_back(cases.accumulator());
  const auto start = bytes_of(initial.data(), static_cast<std::size_t>(p.m * stride) * size);
  auto want = start;
  cpu::gemm_reference(p.spec, a.get(), b.get(), bias, p.accumulate,
                      {want.data(), p.spec.output, p.m, p.n, stride});
  const Restore restore;
  const auto targets = cpu::available_targets();
  for (const cpu::SimdTarget target : targets) {
    cpu::set_active_target(target);
    for (const int threads : {1, 2, 5}) {
      if (threads > 1 && target != targets.back()) continue;
      omp_set_num_threads(threads);
      auto got = start;
      cpu::gemm(p.spec, a.get(), b.get(), bias, p.accumulate,
                {got.data(), p.spec.output, p.m, p.n, stride});
      INFO(name_of(target) << ", " << threads << " threads");
      REQUIRE(first_mismatch(got, want, stride, size) == "");
    }
  }
}

std::int64_t draw(CaseGenerator& cases, std::int64_t first, std::int64_t last) {
  return first + cases.bits() % (last - first + 1);
}

// Shape, output, bias and accumulation at random.
Problem random_problem(CaseGenerator& cases, const GemmSpec& spec, const QuantSpec& a,
                       const QuantSpec& b, std::int64_t largest_k) {
  Problem p{spec, a, b, draw(cases, 1, 40), draw(cases, 1, 80), draw(cases, 1, largest_k)};
  p.spec.output = cases.bits() % 2 == 0 ? DType::f32 : DType::bf16;
  p.accumulate = p.spec.output == DType::f32 && cases.bits() % 2 == 0;
  const DType biases[] = {DType::u8, DType::bf16, DType::f32};
  p.bias = biases[cases.bits() % 3];
  p.specials = cases.bits() % 4 == 0;
  return p;
}

GemmSpec fp8_spec(Schedule schedule, int interval) {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = schedule;
  spec.promote_interval = interval;
  return spec;
}

}  // namespace

TEST_CASE("FP8 GEMM with constant scales equals the reference") {
  CaseGenerator cases(11);
  const FormatSpec formats[] = {numerics::kE4M3, numerics::kE5M2};
  const TileShape tiles[] = {{0, 0}, {1, 0}};
  for (const FormatSpec& fa : formats) {
    for (const FormatSpec& fb : formats) {
      for (const TileShape& tile : tiles) {
        const QuantSpec a = quantized(fa, tile), b = quantized(fb, tile, cases.bits() % 4 != 0);
        for (const int interval : {0, 32, 96, 128}) {
          const GemmSpec spec =
              fp8_spec(interval == 0 ? Schedule::fast : Schedule::promote, interval);
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
      check(cases, random_problem(cases, spec, quantized(numerics::kE4M3, tile[0]),
                                  quantized(numerics::kE5M2, tile[1]), 300));
    }
  }
}

TEST_CASE("Promotion intervals below the tile use the tile's scale for each chunk") {
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

TEST_CASE("Every accumulator equals the reference, with every schedule and operand it takes") {
  CaseGenerator cases(17);
  const auto operand = [&](const TensorCoreProfile& profile, const BlockScale& scale, int i) {
    QuantSpec spec;
    spec.format = profile.operand;
    if (profile.takes_e5m2 && i % 3 == 1) spec.format = numerics::kE5M2;
    if (profile.takes_codes() && i % 5 == 2) spec.format = numerics::kE2M1;
    if (profile.operand == numerics::kE4M3 && i % 5 == 3) spec.format = numerics::kE3M2;
    if (profile.operand == numerics::kTF32 && i % 5 == 3) spec.format = numerics::kBF16;
    if (scale.width > 0) {
      spec.scale_source = ScaleSource::current;
      spec.scale.format = scale.format;
      spec.tile = {i % 4 == 0 ? 3 : 1, scale.width};
    } else if (spec.is_quantized()) {
      spec = quantized(spec.format, {i % 2, 0});
    }
    return spec;
  };
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    const auto& scales = profile.block_scales;
    for (int i = 0; i < 24; ++i) {
      GemmSpec spec;
      spec.accumulator = profile.accumulator;
      const int products = profile.products() == 1 ? 32 : profile.products();
      spec.schedule = i % 3 == 0 ? Schedule::promote : Schedule::fast;
      spec.promote_interval = products * (1 + i / 3 % 4);
      const BlockScale scale = scales[1].width > 0 && i % 2 == 1 ? scales[1] : scales[0];
      Problem p = random_problem(cases, spec, operand(profile, scale, i),
                                 operand(profile, scale, i + cases.bits() % 7), 200);
      if (i % 8 == 7) {
        p.k = draw(cases, 600, 1100);
        p.spec.split_k = spec.schedule == Schedule::fast ? 2 : 1;
      }
      check(cases, p);
    }
  }
}

TEST_CASE("Block scales that put every product below the floor of the common exponent") {
  CaseGenerator cases(24);
  for (const Accumulator accumulator : {Accumulator::sm100_mxf8f6f4, Accumulator::sm100_mxf4nvf4}) {
    const TensorCoreProfile& profile = profile_of(accumulator);
    GemmSpec spec;
    spec.accumulator = accumulator;
    QuantSpec operand = quantized(profile.operand, {1, 32});
    operand.scale.format = numerics::ScaleFormat::e8m0;
    for (const float scale : {0x1p-60f, 0x1p-64f, 0x1p-67f, 0x1p-70f, 0x1p-73f}) {
      Problem p = random_problem(cases, spec, operand, operand, 200);
      p.spec.output = DType::f32;
      p.accumulate = p.specials = false;
      p.bias = DType::u8;
      p.fixed_scale = scale;
      check(cases, p);
    }
  }
}

TEST_CASE("A subnormal FP16 accumulator counts at -14") {
  // Products of 2^-14 times 2^-14 and more lie below it, and those that are cut decide ties.
  CaseGenerator cases(25);
  const std::int64_t m = 20, n = 70, k = 200;
  for (const Accumulator accumulator :
       {Accumulator::sm90_wgmma_fp8_f16, Accumulator::sm89_mma_fp8_f16,
        Accumulator::sm90_mma_sync_fp8_f16, Accumulator::sm90_f16_f16acc}) {
    const bool wide = accumulator == Accumulator::sm90_f16_f16acc;
    QuantizedOperand x, y;
    x.spec = y.spec = quantized(wide ? numerics::kFP16 : numerics::kE5M2, {}, false);
    std::vector<float> values_x, values_y;
    std::vector<std::uint8_t> codes_x, codes_y;
    const auto fill = [&](QuantizedOperand& operand, std::int64_t rows, std::vector<float>& values,
                          std::vector<std::uint8_t>& codes) {
      for (std::int64_t i = 0; i < rows * k; ++i) {
        const int exponent = wide && i % 2 == 0 ? -20 - static_cast<int>(cases.bits() % 2)
                                                : -11 - static_cast<int>(cases.bits() % 4);
        const float magnitude =
            numerics::bits_float(static_cast<std::uint32_t>(exponent + 127) << 23);
        values.push_back(cases.bits() % 2 == 0 ? magnitude : -magnitude);
        codes.push_back(numerics::to_e5m2(values.back()));
      }
      operand.rows = rows;
      operand.k = k;
      if (wide) {
        operand.codes = {values.data(), DType::f32, rows, k, k};
      } else {
        operand.codes = {codes.data(), DType::u8, rows, k, k};
      }
    };
    fill(x, m, values_x, codes_x);
    fill(y, n, values_y, codes_y);
    GemmSpec spec;
    spec.accumulator = accumulator;
    spec.output = DType::f32;
    std::vector<float> got(static_cast<std::size_t>(m * n)), want(got.size());
    cpu::gemm_reference(spec, x, y, {}, false, {want.data(), DType::f32, m, n, n});
    const Restore restore;
    for (const cpu::SimdTarget target : cpu::available_targets()) {
      cpu::set_active_target(target);
      cpu::gemm(spec, x, y, {}, false, {got.data(), DType::f32, m, n, n});
      INFO(accumulator_name(accumulator) << " " << name_of(target));
      REQUIRE(std::memcmp(got.data(), want.data(), got.size() * 4) == 0);
    }
  }
}

TEST_CASE("What FP32 cannot hold still decides ties of an FP16 accumulator") {
  // Sums of 1, 2^-11 and 2^-24: ties of FP16 but for the last, which is below FP32's unit.
  CaseGenerator cases(26);
  const std::int64_t m = 8, n = 70, k = 64;
  std::vector<float> a, b;
  for (std::int64_t i = 0; i < m * k; ++i) a.push_back(cases.bits() % 4 == 0 ? -1.0f : 1.0f);
  for (std::int64_t i = 0; i < n * k; ++i) {
    const float values[] = {0.0f, i % 16 == 0 ? 1.0f : 0.0f, 0x1p-11f, 0x1p-24f};
    b.push_back(values[cases.bits() % 4]);
  }
  QuantizedOperand x, y;
  x.spec = y.spec = quantized(numerics::kFP16, {}, false);
  x.rows = m;
  y.rows = n;
  x.k = y.k = k;
  x.codes = {a.data(), DType::f32, m, k, k};
  y.codes = {b.data(), DType::f32, n, k, k};
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_f16_f16acc;
  spec.output = DType::f32;
  std::vector<float> got(static_cast<std::size_t>(m * n)), want(got.size());
  cpu::gemm_reference(spec, x, y, {}, false, {want.data(), DType::f32, m, n, n});
  const Restore restore;
  for (const cpu::SimdTarget target : cpu::available_targets()) {
    cpu::set_active_target(target);
    cpu::gemm(spec, x, y, {}, false, {got.data(), DType::f32, m, n, n});
    INFO(name_of(target));
    REQUIRE(std::memcmp(got.data(), want.data(), got.size() * 4) == 0);
  }
}

TEST_CASE("One accumulator alone has no fast path") {
  for (const TensorCoreProfile& profile : tensor_core_profiles()) {
    INFO(profile.name);
    const bool fast = profile.accumulator != Accumulator::ideal_exact;
    CHECK(cpu::fast_method(profile.accumulator).has_value() == fast);
  }
}

TEST_CASE("A tile of every kind against every kind") {
  // One group a problem, so that nothing averages out; M and N leave short panels.
  CaseGenerator cases(18);
  const Restore restore;
  omp_set_num_threads(1);
  for (int ka = 0; ka < kCaseKinds; ++ka) {
    for (int kb = 0; kb < kCaseKinds; ++kb) {
      const std::int64_t rows = 5, k = 64;
      auto a = cases.tile<std::uint8_t>(numerics::kE4M3, static_cast<CaseKind>(ka), rows * k);
      auto b = cases.tile<std::uint8_t>(numerics::kE5M2, static_cast<CaseKind>(kb), rows * k);
      QuantizedOperand x, y;
      x.spec = quantized(numerics::kE4M3, {}, false);
      y.spec = quantized(numerics::kE5M2, {}, false);
      x.rows = y.rows = rows;
      x.k = y.k = k;
      x.codes = {a.data(), DType::u8, rows, k, k};
      y.codes = {b.data(), DType::u8, rows, k, k};
      GemmSpec spec = fp8_spec(Schedule::fast, 0);
      spec.output = DType::f32;
      std::vector<float> got(25), want(25);
      cpu::gemm(spec, x, y, {}, false, {got.data(), DType::f32, 5, 5, 5});
      cpu::gemm_reference(spec, x, y, {}, false, {want.data(), DType::f32, 5, 5, 5});
      INFO("kinds " << ka << " and " << kb);
      REQUIRE(std::memcmp(got.data(), want.data(), 100) == 0);
    }
  }
}

namespace {

// Bf16Chain on a random part of a random panel, against fused_group element by element.
void check_chain(CaseGenerator& cases, const std::vector<std::uint16_t>& a,
                 const std::vector<std::uint16_t>& b, std::int64_t m, std::int64_t n,
                 std::int64_t k, const std::vector<float>& c) {
  const bool transpose_a = cases.bits() % 2 == 0, transpose_b = cases.bits() % 2 == 0;
  const std::int64_t k_first = draw(cases, 0, k - 1), k_count = draw(cases, 0, k - k_first);
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

TEST_CASE("Long FP8 chains keep the accumulator's exponent above the products'") {
  CaseGenerator cases(21);
  for (const CaseKind kind : {CaseKind::near_max, CaseKind::narrow, CaseKind::one_large}) {
    const std::int64_t m = 3, n = 40, k = 4096;
    auto a = cases.tile<std::uint8_t>(numerics::kE5M2, kind, m * k);
    auto b = cases.tile<std::uint8_t>(numerics::kE5M2, kind, n * k);
    QuantizedOperand x, y;
    x.spec = y.spec = quantized(numerics::kE5M2, {}, false);
    x.rows = m;
    y.rows = n;
    x.k = y.k = k;
    x.codes = {a.data(), DType::u8, m, k, k};
    y.codes = {b.data(), DType::u8, n, k, k};
    GemmSpec spec = fp8_spec(Schedule::fast, 0);
    spec.output = DType::f32;
    std::vector<float> got(120), want(120);
    cpu::gemm_reference(spec, x, y, {}, false, {want.data(), DType::f32, m, n, n});
    const Restore restore;
    for (const cpu::SimdTarget target : cpu::available_targets()) {
      cpu::set_active_target(target);
      cpu::gemm(spec, x, y, {}, false, {got.data(), DType::f32, m, n, n});
      REQUIRE(std::memcmp(got.data(), want.data(), got.size() * 4) == 0);
    }
  }
}

TEST_CASE("The fast GEMM refuses what the reference refuses") {
  CaseGenerator cases(22);
  const TestOperand a(cases, quantized(numerics::kE4M3, {}), 3, 40, false);
  const TestOperand b(cases, quantized(numerics::kE4M3, {}), 2, 41, false);
  std::vector<std::uint16_t> d(6);
  const TensorView view{d.data(), DType::bf16, 3, 2, 2};
  const GemmSpec spec = fp8_spec(Schedule::promote, 128);
  REQUIRE_THROWS_AS(cpu::gemm(spec, a.get(), b.get(), {}, false, view), Error);
  REQUIRE_THROWS_AS(cpu::gemm(spec, a.get(), a.get(), {}, false, view), Error);
}
