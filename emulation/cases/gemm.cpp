// Cases of GEMM.
#include <cstring>

#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"

namespace fp8lab {
namespace {

struct GemmCase {
  GemmSpec gemm;
  QuantSpec a, b;
};

struct GemmShape {
  std::int64_t m, n, k;
};

constexpr TileShape kTensor{0, 0}, kRow{1, 0}, kGroup{1, 128}, kBlock{128, 128}, kMx{1, 32},
    kNv{1, 16};

QuantSpec e4m3(TileShape tile) { return quantized(numerics::kE4M3, tile); }
QuantSpec e5m2(TileShape tile) { return quantized(numerics::kE5M2, tile); }
QuantSpec e2m1(TileShape tile) { return quantized(numerics::kE2M1, tile); }

GemmSpec fp8_gemm(int interval, int split_k = 1) {
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  if (interval > 0) {
    spec.schedule = Schedule::promote;
    spec.promote_interval = interval;
  }
  spec.split_k = split_k;
  return spec;
}

std::vector<GemmCase> fp8_cases() {
  std::vector<GemmCase> cases = {
      {fp8_gemm(0), e4m3(kTensor), e4m3(kTensor)},
      {fp8_gemm(128), e4m3(kTensor), e5m2(kTensor)},
      {fp8_gemm(0), e5m2(kRow), e4m3(kRow)},
      {fp8_gemm(128), e4m3(kRow), e4m3(kRow)},
      {fp8_gemm(128), e4m3(kGroup), e4m3(kBlock)},
      {fp8_gemm(128), e5m2(kBlock), e4m3(kGroup)},
      {fp8_gemm(128), e4m3(kGroup), e4m3(kGroup)},
      {fp8_gemm(128), e5m2(kBlock), e5m2(kBlock)},
      {fp8_gemm(32), e4m3(kMx), e4m3(kMx)},
      {fp8_gemm(64), e4m3(kGroup), e4m3(kGroup)},
      {fp8_gemm(256), e4m3(kTensor), e4m3(kTensor)},
      {fp8_gemm(96), e4m3(kRow), e4m3(kTensor)},
      {fp8_gemm(128, 2), e4m3(kGroup), e4m3(kBlock)},
      {fp8_gemm(0, 3), e4m3(kTensor), e4m3(kTensor)},
      {fp8_gemm(0), quantized(numerics::kE2M1, kTensor), quantized(numerics::kE3M2, kTensor)},
      {fp8_gemm(128), e4m3(kGroup), e4m3(kGroup)},
  };
  cases.back().gemm.scale_order = ScaleOrder::a_then_b;
  return cases;
}

GemmSpec bf16_gemm(int interval, int split_k = 1) {
  GemmSpec spec;
  spec.schedule = Schedule::promote;
  spec.promote_interval = interval;
  spec.split_k = split_k;
  return spec;
}

/// Returns cases of codes carried to BF16 with scales inside the sum: chunks of one instruction, of
/// several, across the stages of a kernel, and of more than one of these.
std::vector<GemmCase> scaled_bf16_cases() {
  std::vector<GemmCase> cases = {
      {bf16_gemm(16), e2m1(kNv), e2m1(kNv)},
      {bf16_gemm(16), e2m1(kNv), e2m1({16, 16})},
      {bf16_gemm(16), e2m1({16, 16}), e2m1(kNv)},
      {bf16_gemm(32), e2m1(kMx), e2m1({32, 32})},
      {bf16_gemm(16, 3), e2m1(kNv), e2m1(kMx)},
      {bf16_gemm(48), e4m3({1, 48}), e5m2({5, 96})},
      {bf16_gemm(64), e4m3(kGroup), quantized(numerics::kInt8, {1, 64})},
      {bf16_gemm(128, 2), quantized(numerics::kE2M3, kBlock), e4m3(kGroup)},
      {bf16_gemm(16), e2m1(kNv), QuantSpec{}},
      {bf16_gemm(64), QuantSpec{}, e4m3(kBlock)},
      {bf16_gemm(16), e2m1(kNv), e2m1(kNv)},
      {bf16_gemm(32), e2m1(kTensor), e4m3(kRow)},
  };
  cases[cases.size() - 2].gemm.scale_order = ScaleOrder::a_then_b;
  cases.back().gemm.scale_order = ScaleOrder::b_then_a;
  return cases;
}

/// Returns cases of exact sums: of integers, of wide values whose FP64 sums prove their rounding or
/// do not, and with promotion and split K.
std::vector<GemmCase> exact_cases() {
  const auto int8 = [](TileShape tile) { return quantized(numerics::kInt8, tile); };
  std::vector<GemmCase> cases = {
      {fp8_gemm(0), int8(kTensor), int8(kTensor)},
      {fp8_gemm(0), int8(kRow), int8(kRow)},
      {fp8_gemm(0), int8(kTensor), quantized(numerics::kInt4, kRow)},
      {fp8_gemm(0, 2), int8(kRow), int8(kTensor)},
      {fp8_gemm(128), int8(kGroup), int8(kBlock)},
      {fp8_gemm(0), {}, {}},
      {fp8_gemm(0, 3), {}, {}},
      {fp8_gemm(128), e5m2(kGroup), e5m2(kGroup)},
      {fp8_gemm(0, 2), e5m2(kTensor), e5m2(kTensor)},
  };
  for (GemmCase& exact : cases) exact.gemm.accumulator = Accumulator::ideal_exact;
  return cases;
}

std::vector<GemmCase> gemm_cases() {
  std::vector<GemmCase> cases = fp8_cases();
  for (const GemmCase& scaled : scaled_bf16_cases()) cases.push_back(scaled);
  for (const GemmCase& exact : exact_cases()) cases.push_back(exact);
  GemmCase bf16{};
  cases.push_back(bf16);
  bf16.gemm.split_k = 3;
  cases.push_back(bf16);
  GemmCase promoted{};
  promoted.gemm.schedule = Schedule::promote;
  promoted.gemm.promote_interval = 64;
  cases.push_back(promoted);
  for (const Accumulator& accumulator :
       {Accumulator::sm90_wgmma_fp8_f16, Accumulator::sm90_mma_sync_fp8,
        Accumulator::sm90_mma_sync_fp8_f16, Accumulator::sm89_mma_fp8,
        Accumulator::sm89_mma_fp8_f16, Accumulator::sm100_f8f6f4, Accumulator::ideal_fp32,
        Accumulator::ideal_exact,
        accumulator_by_name("custom(products=24,fraction_bits=17,output_mantissa_bits=19)")
            .value()}) {
    GemmCase scalar{fp8_gemm(0), e4m3(kTensor), e5m2(kTensor)};
    scalar.gemm.accumulator = accumulator;
    cases.push_back(scalar);
  }
  return cases;
}

bool is_wgmma(const GemmCase& gemm_case) {
  const GemmSpec& spec = gemm_case.gemm;
  const bool integers = gemm_case.a.format == numerics::kInt8 && spec.schedule == Schedule::fast;
  return spec.accumulator == Accumulator::sm90_wgmma_fp8 ||
         spec.accumulator == Accumulator::sm90_bf16 || integers;
}

/// Returns whether the case's kernel may split tiles between multiprocessors: chains over the whole
/// range, or over 128 bytes of K, for BF16 without scales inside the sum.
bool shares_tiles(const GemmCase& gemm_case) {
  const GemmSpec& spec = gemm_case.gemm;
  const bool bf16 = spec.accumulator == Accumulator::sm90_bf16;
  const bool scaled = numerics::scales_promotion(scale_order(spec, gemm_case.a, gemm_case.b));
  const bool whole_stage = spec.promote_interval == (bf16 ? 64 : 128) && !(bf16 && scaled);
  const bool chained = spec.schedule == Schedule::fast || whole_stage;
  const bool has_kernel =
      gemm_case.a.format != numerics::kE5M2 || gemm_case.b.format != numerics::kE5M2;
  return is_wgmma(gemm_case) && chained && has_kernel && spec.split_k == 1;
}

GemmShape draw_shape(CaseDraw& draw, const GemmCase& gemm_case) {
  const GemmSpec& spec = gemm_case.gemm;
  GemmShape s{};
  switch (is_wgmma(gemm_case) ? draw.round() % 4 : draw.round() % 2) {
    case 0: s = {draw.integer(1, 9), draw.integer(1, 20), draw.integer(1, 300)}; break;
    case 1: s = {draw.integer(20, 200), draw.integer(20, 200), draw.integer(100, 900)}; break;
    case 2: s = {draw.integer(1, 150), draw.integer(200, 500), 16 * draw.integer(60, 300)}; break;
    default: s = {draw.integer(500, 1500), 16 * draw.integer(40, 90), draw.integer(100, 600)};
  }
  // Every range of a split needs a part of K.
  if (spec.split_k > 1) s.k += 512 * spec.split_k;
  return s;
}

/// Draws 120 tiles of 128 x 160, the tile of a chain over the whole range.
GemmShape draw_one_round(CaseDraw& draw, const GemmCase& gemm_case) {
  const std::int64_t k = draw.integer(4230, 4500);
  return {draw.integer(1409, 1536), draw.integer(1473, 1536),
          gemm_case.a.is_quantized() ? k : k / 2};
}

/// Draws 144 tiles of 192 x 128 or of 128 x 128, or 133 of 256 x 128 if every row and column has
/// scales of its own, or for a chain over the whole range 133 of 128 x 256, 190 of 128 x 192 and so
/// on. K is so long that the 132 multiprocessors of an H200 split the last tiles between them.
GemmShape draw_shared(CaseDraw& draw, const GemmCase& gemm_case) {
  if (gemm_case.a.tile == kGroup && gemm_case.b.tile == kGroup) {
    return {draw.integer(1729, 1792), draw.integer(2305, 2432), draw.integer(3080, 3300)};
  }
  if (gemm_case.a.tile.cols == 128) {
    return {draw.integer(2113, 2304), draw.integer(1409, 1536), draw.integer(1160, 1400)};
  }
  const GemmShape round = draw_one_round(draw, gemm_case);
  if (gemm_case.gemm.schedule != Schedule::fast) return round;
  return {draw.integer(2305, 2432), draw.integer(1665, 1792), round.k};
}

template <class Code>
void fill(HostTensor& tensor, const std::vector<Code>& codes) {
  std::memcpy(tensor.data.data(), codes.data(), tensor.data.size());
}

/// Draws INT8 codes from 100 up or down to -127, of one sign: FP32 cannot hold a
/// sum of many such products.
std::vector<std::uint8_t> large_integers(CaseGenerator& generator, std::size_t count) {
  const bool negative = generator.bits() % 2 != 0;
  std::vector<std::uint8_t> codes(count);
  for (std::uint8_t& code : codes) {
    const std::uint32_t magnitude = 127u - generator.bits() % 28u;
    code = static_cast<std::uint8_t>(negative ? 0u - magnitude : magnitude);
  }
  return codes;
}

HostTensor draw_codes(CaseDraw& draw, const QuantSpec& spec, const MatrixShape& s, bool specials) {
  CaseGenerator generator(draw.word());
  HostTensor tensor{spec.storage(), s.rows, s.cols, {}, false, false};
  tensor.data.resize(static_cast<std::size_t>(s.rows * s.cols) * size_of(tensor.dtype));
  if (spec.format == numerics::kInt8 && specials) {
    fill(tensor, large_integers(generator, tensor.data.size()));
  } else if (tensor.dtype == DType::u8) {
    fill(tensor, generator.codes<std::uint8_t>(spec.format, s.rows, s.cols, 8, 64, specials));
  } else {
    fill(tensor, generator.codes<std::uint16_t>(spec.format, s.rows, s.cols, 8, 64, specials));
  }
  return tensor;
}

/// Returns the shape of an operand's matrix in memory.
MatrixShape stored(StorageOrder order, std::int64_t rows, std::int64_t k) {
  return MatrixShape{rows, k}.transposed_if(order == StorageOrder::rows_contiguous);
}

std::string order_name(const char* operand, StorageOrder order) {
  return order == StorageOrder::rows_contiguous ? fmt::format(" {} by rows", operand) : "";
}

/// Adds two cases: one stores bf16, one adds to an f32 result.
void multiply(CaseDraw& draw, const GemmCase& gemm_case, const GemmShape& s, StorageOrder order_a,
              StorageOrder order_b) {
  const bool wild = draw.one_in(gemm_case.a.format == numerics::kInt8 ? 2 : 4);
  for (const bool accumulate : {false, true}) {
    GemmSpec spec = gemm_case.gemm;
    spec.output = accumulate ? DType::f32 : DType::bf16;
    if (draw.one_in(4)) spec.alpha = 0.0441941738f;  // of munit Scaling with 512 inputs
    const QuantSpec a = gemm_case.a, b = gemm_case.b;
    const bool bias = draw.one_in(2);
    draw.add(fmt::format("gemm {} x {} {}", label(a), label(b), label(spec)),
             fmt::format("({}, {}, {}){}{}{}{}", s.m, s.n, s.k, order_name("A", order_a),
                         order_name("B", order_b), bias ? " bias" : "",
                         accumulate ? " accumulated" : ""),
             {draw_codes(draw, a, stored(order_a, s.m, s.k), wild), draw_scales(draw, a, s.m, s.k),
              draw_codes(draw, b, stored(order_b, s.n, s.k), wild), draw_scales(draw, b, s.n, s.k),
              flat(draw.ordinary(DType::bf16, 1, s.n)), draw.output(spec.output, s.m, s.n)},
             [=](Backend& backend, const Views& t) {
               QuantizedOperand left = operand_at(a, s.m, s.k, t, 0);
               QuantizedOperand right = operand_at(b, s.n, s.k, t, 2);
               left.order = order_a;
               right.order = order_b;
               backend.run(ops::Gemm{.spec = spec,
                                     .a = left,
                                     .b = right,
                                     .bias = bias ? t[4] : TensorView{},
                                     .accumulate = accumulate,
                                     .d = t[5]});
             });
  }
}

/// Adds cases of every storage order. Tensor cores read along rows only if
/// these are whole 16 bytes.
void multiply(CaseDraw& draw, const GemmCase& gemm_case, const GemmShape& s) {
  constexpr StorageOrder kAlongK = StorageOrder::k_contiguous;
  constexpr StorageOrder kAlongRows = StorageOrder::rows_contiguous;
  multiply(draw, gemm_case, s, kAlongK, kAlongK);
  const auto whole = [](std::int64_t rows) { return (rows + 7) / 8 * 8; };
  const GemmShape aligned{whole(s.m), whole(s.n), s.k};
  const bool codes_a = gemm_case.a.is_quantized(), codes_b = gemm_case.b.is_quantized();
  if (codes_a || codes_b) {
    if (!codes_b) multiply(draw, gemm_case, aligned, kAlongK, kAlongRows);
    if (!codes_a) multiply(draw, gemm_case, aligned, kAlongRows, kAlongK);
    return;
  }
  multiply(draw, gemm_case, aligned, kAlongK, kAlongRows);
  multiply(draw, gemm_case, aligned, kAlongRows, kAlongRows);
  if (!draw.one_in(4)) return;
  multiply(draw, gemm_case, aligned, kAlongRows, kAlongK);
  multiply(draw, gemm_case, s, kAlongRows, kAlongRows);
  multiply(draw, gemm_case, {aligned.m, s.n, s.k}, kAlongRows, kAlongRows);
}

}  // namespace

template <>
void draw_cases<ops::Gemm>(CaseDraw& draw) {
  const std::vector<GemmCase> cases = gemm_cases();
  for (const GemmCase& gemm_case : cases) {
    multiply(draw, gemm_case, draw_shape(draw, gemm_case));
  }
  if (draw.round() % 4 != 3) return;
  for (const GemmCase& gemm_case : cases) {
    if (!shares_tiles(gemm_case)) continue;
    multiply(draw, gemm_case, draw_shared(draw, gemm_case));
    if (gemm_case.gemm.schedule != Schedule::fast) continue;
    multiply(draw, gemm_case, draw_one_round(draw, gemm_case));
  }
}

}  // namespace fp8lab
