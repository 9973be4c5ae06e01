// The plan and the reference GEMM of the backend contract, on cases small enough to compute by
// hand.
#include <cstdint>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "emulation/spec/gemm_rules.hpp"
#include "emulation/spec/recipe.hpp"

namespace {

using namespace fp8lab;
using numerics::decode;
using numerics::float_bits;
using numerics::to_bf16;

QuantSpec e4m3(TileShape tile) { return quantized(numerics::kE4M3, tile); }

GemmSpec fp8_gemm(int promote_interval, DType output = DType::f32) {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = promote_interval > 0 ? Schedule::promote : Schedule::fast;
  if (promote_interval > 0) spec.promote_interval = promote_interval;
  spec.output = output;
  return spec;
}

// A matrix that owns its memory; `padding` unused columns follow each row.
template <class T>
struct Matrix {
  Matrix(DType type, std::int64_t row_count, std::int64_t col_count, std::int64_t padding = 0)
      : values(static_cast<std::size_t>(row_count * (col_count + padding))),
        view{values.data(), type, row_count, col_count, col_count + padding} {}
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  T& at(std::int64_t r, std::int64_t c) { return view.template row<T>(r)[c]; }

  std::vector<T> values;
  TensorView view;
};

struct Operand {
  Operand(const QuantSpec& spec, std::int64_t rows, std::int64_t k, std::int64_t padding = 0)
      : codes(DType::u8, rows, k, padding),
        scales(DType::f32, spec.has_scale() ? spec.tile_rows(rows) : 0,
               spec.has_scale() ? spec.tile_cols(k) : 0) {
    quantized.spec = spec;
    quantized.rows = rows;
    quantized.k = k;
    quantized.codes = codes.view;
    if (spec.has_scale()) quantized.scales = scales.view;
    for (float& scale : scales.values) scale = 1.0f;
  }

  Matrix<std::uint8_t> codes;
  Matrix<float> scales;
  QuantizedOperand quantized;
};

constexpr std::uint8_t kOne = 0x38;

std::uint32_t next_random(std::uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

void randomize(Operand& operand, std::uint32_t seed) {
  for (std::uint8_t& code : operand.codes.values) {
    code = static_cast<std::uint8_t>(next_random(seed));
    if ((code & 0x7Fu) >= 0x78u) code &= 0xB7u;  // no NaN, no infinity
  }
  for (float& scale : operand.scales.values) {
    scale = 1.0f + static_cast<float>(next_random(seed) & 0xFFFFu) / 65536.0f;
  }
}

TEST_CASE("automatic scale order follows the tiles") {
  const auto order = [](TileShape a, TileShape b, int interval) {
    return plan_gemm(fp8_gemm(interval), e4m3(a), e4m3(b), 256).order;
  };
  CHECK(order({0, 0}, {0, 0}, 0) == ScaleOrder::epilogue);
  CHECK(order({1, 0}, {1, 0}, 128) == ScaleOrder::epilogue);
  CHECK(order({1, 128}, {1, 128}, 128) == ScaleOrder::b_then_a);
  CHECK(order({1, 128}, {128, 128}, 128) == ScaleOrder::product_first);
  CHECK(order({128, 128}, {1, 128}, 128) == ScaleOrder::product_first);
  CHECK(order({1, 32}, {1, 32}, 32) == ScaleOrder::b_then_a);
  CHECK(order({1, 128}, {0, 0}, 128) == ScaleOrder::b_then_a);
  CHECK(plan_gemm(fp8_gemm(0), e4m3({0, 0}), e4m3({0, 0}), 256).scalar_scales);
  CHECK_FALSE(plan_gemm(fp8_gemm(0), e4m3({1, 0}), e4m3({0, 0}), 256).scalar_scales);
}

TEST_CASE("split-K ranges of a plan") {
  GemmSpec spec = fp8_gemm(128);
  spec.split_k = 4;
  const auto ranges = [&](TileShape b, std::int64_t k) {
    return plan_gemm(spec, e4m3({1, 128}), e4m3(b), k).ranges;
  };
  CHECK(ranges({1, 128}, 18944) ==
        std::vector<KRange>{{0, 4736}, {4736, 9472}, {9472, 14208}, {14208, 18944}});
  CHECK(ranges({128, 128}, 18944) ==
        std::vector<KRange>{{0, 5120}, {5120, 10240}, {10240, 15360}, {15360, 18944}});
  CHECK_THROWS_WITH(ranges({1, 128}, 256),
                    Catch::Contains("split_k = 4") && Catch::Contains("use split_k = 2"));
  GemmSpec bf16;
  bf16.split_k = 5;  // 64 blocks of 64 in shares of 13; blocks of 128 would give 896
  const GemmPlan plan = plan_gemm(bf16, QuantSpec{}, QuantSpec{}, 4096);
  CHECK(plan.ranges ==
        std::vector<KRange>{{0, 832}, {832, 1664}, {1664, 2496}, {2496, 3328}, {3328, 4096}});
}

TEST_CASE("impossible combinations are refused with a reason") {
  const QuantSpec tile = e4m3({1, 128});
  const QuantSpec tensor = e4m3({0, 0});
  const auto refusal = [](const GemmSpec& spec, const QuantSpec& a, const QuantSpec& b) {
    const std::string reason = gemm_refusal(spec, a, b);
    if (!reason.empty()) CHECK_THROWS_AS(plan_gemm(spec, a, b, 256), Error);
    return reason;
  };
  using Catch::Contains;
  CHECK_THAT(refusal(fp8_gemm(128), QuantSpec{}, tensor), Contains("cannot multiply a, which is"));
  CHECK_THAT(refusal(fp8_gemm(128), tensor, quantized(numerics::kE3M4, {0, 0})),
             Contains("cannot multiply b"));
  GemmSpec spec;
  QuantSpec fp16;
  fp16.format = numerics::kFP16;
  CHECK_THAT(refusal(spec, fp16, fp16), Contains("bf16"));
  spec = fp8_gemm(0);
  spec.scale_order = ScaleOrder::product_first;
  CHECK_THAT(refusal(spec, tensor, tensor), Contains("promote:128"));
  spec = fp8_gemm(128);
  spec.scale_order = ScaleOrder::epilogue;
  CHECK_THAT(refusal(spec, tile, tile), Contains("epilogue"));
  spec = fp8_gemm(128);
  spec.split_k = 0;
  CHECK_THAT(refusal(spec, tensor, tensor), Contains("split_k"));
  spec = fp8_gemm(128);
  spec.output = DType::f64;
  CHECK_THAT(refusal(spec, tensor, tensor), Contains("f64"));
  spec = fp8_gemm(0);
  QuantSpec clamped = tensor;
  clamped.transform = Transform{Clamp{0.99, Compensation::original}};
  CHECK(refusal(spec, tensor, clamped).empty());
  spec.alpha = 0.5f;
  CHECK_THAT(refusal(spec, tensor, clamped),
             Contains("transform of b") && Contains("multiplies by 0.5"));
  CHECK(refusal(fp8_gemm(128), tile, tile).empty());
  CHECK(refusal(fp8_gemm(128), quantized(numerics::kE2M1, {0, 0}), tensor).empty());
}

TEST_CASE("a promotion interval divides every tile and is whole instructions: recipe and GEMM") {
  struct Row {
    int interval;  // 0: fast
    std::int64_t width_a, width_b;
    const char* refused;  // part of the message, empty when accepted
  };
  const Row rows[] = {
      {0, 128, 0, "inside an accumulation chunk; accepted: promote:32, promote:64, promote:128"},
      {32, 128, 128, ""},
      {64, 128, 128, ""},
      {128, 128, 128, ""},
      {64, 128, 0, ""},
      {64, 128, 64, ""},
      {32, 96, 64, ""},
      {96, 128, 128, "accepted: promote:32, promote:64, promote:128"},
      {256, 128, 128, "promote:64, promote:128"},
      {128, 128, 64, "scales of b (tile 1x64)"},
      {64, 96, 64, "accepted: promote:32"},
      {32, 48, 64, "no interval is a divisor of 16 and a multiple of 32"},
      {48, 48, 48, "promote:32 or another multiple of 32"},
      {48, 0, 0, "promote:32 or another multiple of 32"},
      {96, 0, 0, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.interval, row.width_a, row.width_b);
    const auto operand = [](std::int64_t width) { return e4m3({width > 0 ? 1 : 0, width}); };
    const QuantSpec a = operand(row.width_a), b = operand(row.width_b);
    const GemmSpec spec = fp8_gemm(row.interval);
    const std::string reason = gemm_refusal(spec, a, b);
    CHECK(reason.empty() == (row.refused[0] == '\0'));
    CHECK_THAT(reason, Catch::Contains(row.refused));
    LinearRecipe recipe;
    recipe.slot(Slot::fprop_x) = a;
    recipe.slot(Slot::fprop_w) = b;
    recipe.gemm(GemmRole::fprop) = spec;
    recipe.gemm(GemmRole::wgrad).output = DType::f32;
    if (reason.empty()) {
      CHECK(plan_gemm(spec, a, b, 256).chunk == (row.interval == 0 ? 256 : row.interval));
      CHECK_NOTHROW(validate(recipe, "here"));
    } else {
      CHECK_THROWS_AS(plan_gemm(spec, a, b, 256), Error);
      CHECK_THROWS_WITH(validate(recipe, "here"), Catch::Contains("gemm.fprop.schedule"));
    }
  }
}

TEST_CASE("formats are carried only where they fit") {
  CHECK(numerics::holds_values(numerics::kE4M3, numerics::kE2M1));
  CHECK(numerics::holds_values(numerics::kE4M3, numerics::kE2M3));
  CHECK(numerics::holds_values(numerics::kE4M3, numerics::kE3M2));
  CHECK_FALSE(numerics::holds_values(numerics::kE4M3, numerics::kE3M4));
  CHECK_FALSE(numerics::holds_values(numerics::kE4M3, numerics::kE5M2));
  CHECK_FALSE(numerics::holds_values(numerics::kBF16, numerics::kFP16));
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    for (const numerics::NamedFormat& target : numerics::kNamedFormats) {
      // A target other than these holds only itself.
      const bool general =
          target.format.encoding == numerics::Encoding::floating && target.format.has_subnormals;
      if (named.format.bits() > 8 || !general || named.format == numerics::kLogFmt8) continue;
      bool all = true;  // every code survives the trip
      for (std::uint32_t code = 0; code < 1u << named.format.bits(); ++code) {
        const std::uint32_t value = numerics::decode_bits(named.format, code);
        const std::uint32_t carried = numerics::encode(
            target.format, value, numerics::Rounding::nearest, numerics::Overflow::special);
        all = all && numerics::decode_bits(target.format, carried) == value;
      }
      CAPTURE(named.name, target.name);
      CHECK(numerics::holds_values(target.format, named.format) == all);
    }
  }
}

TEST_CASE("scalar, row and block scales reach the right elements") {
  Operand a(e4m3({1, 128}), 2, 256);
  Operand b(e4m3({128, 128}), 130, 256);
  for (std::uint8_t& code : a.codes.values) code = kOne;
  for (std::uint8_t& code : b.codes.values) code = kOne;
  a.scales.values = {1.0f, 2.0f, 4.0f, 8.0f};     // (row, block)
  b.scales.values = {1.0f, 16.0f, 32.0f, 64.0f};  // rows 0..127 and 128..129
  Matrix<float> d(DType::f32, 2, 130, 3);
  reference::gemm(ops::Gemm{fp8_gemm(128), a.quantized, b.quantized, {}, false, d.view});
  CHECK(d.at(0, 0) == 128.0f * (1 * 1 + 2 * 16));
  CHECK(d.at(1, 127) == 128.0f * (4 * 1 + 8 * 16));
  CHECK(d.at(0, 128) == 128.0f * (1 * 32 + 2 * 64));
  CHECK(d.at(1, 129) == 128.0f * (4 * 32 + 8 * 64));

  Operand row(e4m3({1, 0}), 2, 40);
  Operand tensor(e4m3({0, 0}), 3, 40, 5);
  for (std::uint8_t& code : row.codes.values) code = kOne;
  for (std::uint8_t& code : tensor.codes.values) code = kOne;
  row.scales.values = {3.0f, 5.0f};
  tensor.scales.values = {0.5f};
  Matrix<std::uint16_t> e(DType::bf16, 2, 3);
  reference::gemm(
      ops::Gemm{fp8_gemm(0, DType::bf16), row.quantized, tensor.quantized, {}, false, e.view});
  CHECK(e.at(0, 2) == to_bf16(60.0f));
  CHECK(e.at(1, 0) == to_bf16(100.0f));
}

TEST_CASE("the reference is one element of schedule.hpp each, in every schedule and order") {
  const std::int64_t k = 400;  // the last block is short
  for (const TileShape tile : {TileShape{0, 0}, TileShape{1, 0}, TileShape{1, 128}}) {
    for (const int interval : {0, 32, 64, 128}) {
      if (tile.cols > 0 && interval == 0) continue;
      Operand a(e4m3(tile), 3, k, 7);
      Operand b(quantized(numerics::kE5M2, tile), 2, k);
      randomize(a, 1);
      randomize(b, 2);
      GemmSpec spec = fp8_gemm(interval);
      for (const int split : {1, 2}) {
        spec.split_k = split;
        spec.alpha = split == interval % 3 ? 1.0f : 0.3f;
        Matrix<float> d(DType::f32, 3, 2);
        reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, {}, false, d.view});
        numerics::ElementGemm element;
        element.format_b = numerics::kE5M2;
        element.promote_interval = interval;
        element.range_width = split == 2 ? 256 : 0;
        element.scale_width_a = element.scale_width_b = tile.cols;
        if (tile.cols > 0) element.order = numerics::ScaleOrder::b_then_a;
        numerics::Epilogue epilogue;
        epilogue.output = numerics::kFP32;
        epilogue.split_k = split == 2;
        epilogue.alpha = spec.alpha;
        epilogue.scales = tile.cols > 0    ? numerics::EpilogueScales::none
                          : tile.rows == 0 ? numerics::EpilogueScales::scalar
                                           : numerics::EpilogueScales::outer;
        for (std::int64_t m = 0; m < 3; ++m) {
          for (std::int64_t n = 0; n < 2; ++n) {
            const float* sa = a.scales.view.row<float>(tile.rows == 0 ? 0 : m);
            const float* sb = b.scales.view.row<float>(tile.rows == 0 ? 0 : n);
            const float acc =
                numerics::accumulate_element(element, a.codes.view.row<std::uint8_t>(m),
                                             b.codes.view.row<std::uint8_t>(n), k, sa, sb);
            CHECK(float_bits(d.at(m, n)) ==
                  numerics::finish_element(epilogue, acc, *sa, *sb, 0.0f, nullptr));
          }
        }
      }
    }
  }
}

TEST_CASE("bias and accumulation round where the epilogue says") {
  Operand a(e4m3({0, 0}), 1, 32);
  Operand b(e4m3({0, 0}), 2, 32);
  a.codes.at(0, 0) = b.codes.at(0, 0) = b.codes.at(1, 0) = kOne;
  a.scales.values = {1.0f + 0x1p-12f};
  b.scales.values = {1.0f + 0x1p-12f};
  Matrix<float> d(DType::f32, 1, 2);
  d.values = {-1.0f, 0.0f};
  GemmSpec spec = fp8_gemm(0);
  reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, {}, true, d.view});
  const float s = (1.0f + 0x1p-12f) * (1.0f + 0x1p-12f);  // 1 + 2^-11, rounded
  CHECK(d.values == std::vector<float>{s - 1.0f, s});

  Matrix<std::uint16_t> bias(DType::bf16, 1, 2);
  bias.values = {to_bf16(0x1p-24f), to_bf16(-1.0f)};
  a.scales.values = b.scales.values = {1.0f};
  reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, bias.view, false, d.view});
  CHECK(d.values == std::vector<float>{1.0f, 0.0f});

  // One scale inside the fma: 3 * (1 + 2^-23) - 3 keeps the 2^-23 that a rounded product loses.
  a.codes.at(0, 0) = 0x44;  // 3
  a.scales.values = {1.0f + 0x1p-23f};
  d.values = {-3.0f, -3.0f};
  reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, {}, true, d.view});
  CHECK(d.values[0] == 3 * 0x1p-23f);
}

TEST_CASE("split-K has the epilogue of the reduction kernel") {
  Operand a(e4m3({0, 0}), 1, 256);  // all zero
  Operand b(e4m3({0, 0}), 1, 256);
  a.scales.values = {-1.0f};
  Matrix<float> d(DType::f32, 1, 1);
  GemmSpec spec = fp8_gemm(128);
  reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, {}, false, d.view});
  CHECK(float_bits(d.at(0, 0)) == 0u);
  spec.split_k = 2;
  reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, {}, false, d.view});
  CHECK(float_bits(d.at(0, 0)) == 0x80000000u);
}

TEST_CASE("narrow formats and mixed operands are carried exactly") {
  const std::int64_t k = 64;
  Operand narrow(quantized(numerics::kE2M1, {0, 0}), 16, k);
  Operand same(e4m3({0, 0}), 16, k);  // the same values as e4m3 codes
  Operand other(e4m3({0, 0}), 3, k);
  randomize(other, 3);
  Matrix<std::uint16_t> wide(DType::bf16, 3, k);  // the same values as bf16
  for (std::int64_t r = 0; r < 16; ++r) {
    for (std::int64_t c = 0; c < k; ++c) {
      const auto code = static_cast<std::uint8_t>((r * 7 + c * 3) % 16);
      narrow.codes.at(r, c) = code;
      same.codes.at(r, c) = static_cast<std::uint8_t>(
          numerics::encode(numerics::kE4M3, numerics::decode_bits(numerics::kE2M1, code)));
    }
  }
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t c = 0; c < k; ++c) {
      wide.at(r, c) = to_bf16(decode(numerics::kE4M3, other.codes.at(r, c)));
    }
  }
  Matrix<float> d(DType::f32, 16, 3);
  Matrix<float> expected(DType::f32, 16, 3);
  reference::gemm(ops::Gemm{fp8_gemm(0), narrow.quantized, other.quantized, {}, false, d.view});
  reference::gemm(
      ops::Gemm{fp8_gemm(0), same.quantized, other.quantized, {}, false, expected.view});
  CHECK(d.values == expected.values);

  GemmSpec bf16;
  bf16.output = DType::f32;
  other.scales.values = {1.0f};
  QuantizedOperand unquantized;
  unquantized.rows = 3;
  unquantized.k = k;
  unquantized.codes = wide.view;
  reference::gemm(ops::Gemm{bf16, narrow.quantized, unquantized, {}, false, d.view});
  reference::gemm(ops::Gemm{bf16, same.quantized, other.quantized, {}, false, expected.view});
  CHECK(d.values == expected.values);
}

TEST_CASE("ideal accumulators take FP32 values") {
  Matrix<float> x(DType::f32, 1, 3);
  Matrix<float> y(DType::f32, 1, 3);
  x.values = {0x1p60f, 0x1.000002p0f, -0x1p60f};
  y.values = {1.0f, 1.0f, 1.0f};
  QuantSpec fp32;
  fp32.format = numerics::kFP32;
  QuantizedOperand a;
  a.spec = fp32;
  a.rows = 1;
  a.k = 3;
  a.codes = x.view;
  QuantizedOperand b = a;
  b.codes = y.view;
  GemmSpec spec;
  spec.output = DType::f32;
  Matrix<float> d(DType::f32, 1, 1);
  spec.accumulator = Accumulator::ideal_exact;
  reference::gemm(ops::Gemm{spec, a, b, {}, false, d.view});
  CHECK(d.at(0, 0) == 0x1.000002p0f);
  spec.accumulator = Accumulator::ideal_fp32;
  reference::gemm(ops::Gemm{spec, a, b, {}, false, d.view});
  CHECK(d.at(0, 0) == 0.0f);
  spec.accumulator = Accumulator::sm90_bf16;
  CHECK_THROWS_WITH(reference::gemm(ops::Gemm{spec, a, b, {}, false, d.view}),
                    Catch::Contains("cannot multiply a, which is fp32"));
}

TEST_CASE("mma.sync accumulates C with a rounding of its own") {
  Operand a(e4m3({0, 0}), 1, 64);
  Operand b(e4m3({0, 0}), 1, 64);
  for (std::uint8_t& code : b.codes.values) code = kOne;
  a.codes.at(0, 0) = 0x78;   // 256: the first instruction
  a.codes.at(0, 32) = 0x01;  // 2^-9 * 1: cut by wgmma next to 2^8, kept here
  GemmSpec spec = fp8_gemm(0);
  Matrix<float> d(DType::f32, 1, 1);
  reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, {}, false, d.view});
  CHECK(d.at(0, 0) == 256.0f);
  spec.accumulator = Accumulator::sm90_mma_sync_fp8;
  reference::gemm(ops::Gemm{spec, a.quantized, b.quantized, {}, false, d.view});
  CHECK(d.at(0, 0) == 256.0f + 0x1p-9f);
}

TEST_CASE("operands that do not fit are refused") {
  Operand a(e4m3({0, 0}), 2, 32);
  Operand b(e4m3({0, 0}), 3, 32);
  Operand longer(e4m3({0, 0}), 3, 64);
  Matrix<float> d(DType::f32, 2, 3);
  Matrix<float> wrong(DType::f32, 3, 2);
  Matrix<std::uint16_t> half(DType::bf16, 2, 3);
  const auto run = [&](const QuantizedOperand& right, const TensorView& bias, const TensorView& out,
                       bool accumulate = false) {
    reference::gemm(ops::Gemm{fp8_gemm(0), a.quantized, right, bias, accumulate, out});
  };
  CHECK_THROWS_WITH(run(longer.quantized, {}, d.view), Catch::Contains("operand b"));
  CHECK_THROWS_WITH(run(b.quantized, {}, wrong.view), Catch::Contains("output is 3x2"));
  CHECK_THROWS_WITH(run(b.quantized, {}, half.view), Catch::Contains("output is bf16"));
  CHECK_THROWS_WITH(run(b.quantized, d.view, d.view), Catch::Contains("bias is 2x3"));
  QuantizedOperand unscaled = b.quantized;
  unscaled.scales = {};
  CHECK_THROWS_WITH(run(unscaled, {}, d.view), Catch::Contains("scales"));
  CHECK_NOTHROW(run(b.quantized, {}, d.view, true));
}

}  // namespace
