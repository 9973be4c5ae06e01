// Calls of GEMM.
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include "src/validate/kernel_data.hpp"
#include "src/validate/kernels.hpp"

namespace fp8lab {
namespace {

using numerics::FormatSpec;
using numerics::Rounding;
using numerics::ScaleFormat;
using Views = std::vector<TensorView>;

struct GemmCase {
  GemmSpec gemm;
  QuantSpec a, b;
};

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

std::vector<GemmCase> gemm_cases() {
  const auto e4m3 = [](TileShape tile) {
    return quantized(numerics::kE4M3, tile, ScaleFormat::fp32);
  };
  const auto e5m2 = [](TileShape tile) {
    return quantized(numerics::kE5M2, tile, ScaleFormat::fp32);
  };
  const TileShape tensor{0, 0}, row{1, 0}, group{1, 128}, block{128, 128}, mx{1, 32};
  std::vector<GemmCase> cases = {
      {fp8_gemm(0), e4m3(tensor), e4m3(tensor)},
      {fp8_gemm(128), e4m3(tensor), e5m2(tensor)},
      {fp8_gemm(0), e5m2(row), e4m3(row)},
      {fp8_gemm(128), e4m3(row), e4m3(row)},
      {fp8_gemm(128), e4m3(group), e4m3(block)},
      {fp8_gemm(128), e5m2(block), e4m3(group)},
      {fp8_gemm(128), e4m3(group), e4m3(group)},
      {fp8_gemm(128), e5m2(block), e5m2(block)},
      {fp8_gemm(32), e4m3(mx), e4m3(mx)},
      {fp8_gemm(64), e4m3(group), e4m3(group)},
      {fp8_gemm(256), e4m3(tensor), e4m3(tensor)},
      {fp8_gemm(96), e4m3(row), e4m3(tensor)},
      {fp8_gemm(128, 2), e4m3(group), e4m3(block)},
      {fp8_gemm(0, 3), e4m3(tensor), e4m3(tensor)},
      {fp8_gemm(0), quantized(numerics::kE2M1, tensor, ScaleFormat::fp32),
       quantized(numerics::kE3M2, tensor, ScaleFormat::fp32)},
  };
  GemmCase ordered{fp8_gemm(128), e4m3(group), e4m3(group)};
  ordered.gemm.scale_order = ScaleOrder::a_then_b;
  cases.push_back(ordered);
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
    GemmCase scalar{fp8_gemm(0), e4m3(tensor), e5m2(tensor)};
    scalar.gemm.accumulator = accumulator;
    cases.push_back(scalar);
  }
  return cases;
}

/// Those whose kernels may share tiles: chains over the whole range, or over 128 bytes of K.
std::vector<GemmCase> shared_cases() {
  std::vector<GemmCase> cases;
  for (const GemmCase& gemm_case : gemm_cases()) {
    const GemmSpec& spec = gemm_case.gemm;
    const bool wgmma = spec.accumulator == Accumulator::sm90_wgmma_fp8 ||
                       spec.accumulator == Accumulator::sm90_bf16;
    const bool bf16 = !gemm_case.a.is_quantized();
    const bool chained =
        spec.schedule == Schedule::fast || spec.promote_interval == (bf16 ? 64 : 128);
    const bool both =
        gemm_case.a.format != numerics::kE5M2 || gemm_case.b.format != numerics::kE5M2;
    if (wgmma && chained && both && spec.split_k == 1) cases.push_back(gemm_case);
  }
  return cases;
}

class GemmCalls {
 public:
  GemmCalls(std::uint64_t seed, int round) : data_(seed), round_(round) {}

  std::vector<KernelCall> draw() {
    for (const GemmCase& gemm_case : gemm_cases()) multiply(gemm_case, shape(gemm_case));
    if (round_ % 4 == 3) {
      for (const GemmCase& gemm_case : shared_cases()) {
        multiply(gemm_case, shared(gemm_case));
        if (gemm_case.gemm.schedule == Schedule::fast) multiply(gemm_case, one_round(gemm_case));
      }
    }
    return std::move(calls_);
  }

 private:
  struct Shape {
    std::int64_t m, n, k;
  };
  Shape shape(const GemmCase& gemm_case) {
    const bool slow = gemm_case.gemm.accumulator != Accumulator::sm90_wgmma_fp8 &&
                      gemm_case.gemm.accumulator != Accumulator::sm90_bf16;
    Shape s{};
    switch (slow ? round_ % 2 : round_ % 4) {
      case 0: s = {data_.integer(1, 9), data_.integer(1, 20), data_.integer(1, 300)}; break;
      case 1: s = {data_.integer(20, 200), data_.integer(20, 200), data_.integer(100, 900)}; break;
      case 2:
        s = {data_.integer(1, 150), data_.integer(200, 500), 16 * data_.integer(60, 300)};
        break;
      default: s = {data_.integer(500, 1500), 16 * data_.integer(40, 90), data_.integer(100, 600)};
    }
    // Every range of a split needs some of K.
    if (gemm_case.gemm.split_k > 1) s.k += 512 * gemm_case.gemm.split_k;
    return s;
  }

  /// 144 tiles of 192 x 128, or of 128 x 128, or 133 of 256 x 128 where every row and column has
  /// scales of its own, or for a chain over the whole range 133 of 128 x 256, 190 of 128 x 192 and
  /// so on, and K so long that the 132 multiprocessors of an H200 share the last ones.
  Shape shared(const GemmCase& gemm_case) {
    if (gemm_case.a.tile == TileShape{1, 128} && gemm_case.b.tile == TileShape{1, 128}) {
      return {data_.integer(1729, 1792), data_.integer(2305, 2432), data_.integer(3080, 3300)};
    }
    if (gemm_case.a.tile.cols == 128) {
      return {data_.integer(2113, 2304), data_.integer(1409, 1536), data_.integer(1160, 1400)};
    }
    const Shape round = one_round(gemm_case);
    if (gemm_case.gemm.schedule != Schedule::fast) return round;
    return {data_.integer(2305, 2432), data_.integer(1665, 1792), round.k};
  }
  /// 120 tiles of 128 x 160, which a chain over the whole range takes.
  Shape one_round(const GemmCase& gemm_case) {
    const std::int64_t k = data_.integer(4230, 4500);
    return {data_.integer(1409, 1536), data_.integer(1473, 1536),
            gemm_case.a.is_quantized() ? k : k / 2};
  }

  HostTensor codes(const QuantSpec& spec, std::int64_t rows, std::int64_t k, bool specials) {
    CaseGenerator generator(data_.word());
    HostTensor tensor{spec.storage(), rows, k, {}, false, false};
    tensor.data.resize(static_cast<std::size_t>(rows * k) * size_of(tensor.dtype));
    if (tensor.dtype == DType::u8) {
      const auto drawn = generator.codes<std::uint8_t>(spec.format, rows, k, 8, 64, specials);
      std::memcpy(tensor.data.data(), drawn.data(), tensor.data.size());
    } else {
      const auto drawn = generator.codes<std::uint16_t>(spec.format, rows, k, 8, 64, specials);
      std::memcpy(tensor.data.data(), drawn.data(), tensor.data.size());
    }
    return tensor;
  }
  HostTensor scales(const QuantSpec& spec, std::int64_t rows, std::int64_t k) {
    HostTensor tensor = scales_of(data_, spec, rows, k);
    tensor.output = false;
    CaseGenerator generator(data_.word());
    for (std::size_t i = 0; i < tensor.data.size(); i += 4) {
      const float scale = generator.scale();
      std::memcpy(tensor.data.data() + i, &scale, sizeof scale);
    }
    return tensor;
  }

  void multiply(const GemmCase& gemm_case, const Shape& s) {
    const bool wild = data_.word() % 4 == 0;
    for (const bool accumulate : {false, true}) {
      GemmSpec spec = gemm_case.gemm;
      spec.output = accumulate ? DType::f32 : DType::bf16;
      const QuantSpec a = gemm_case.a, b = gemm_case.b;
      const bool bias = data_.word() % 2 == 0;
      calls_.push_back({fmt::format("gemm {} x {} {}", label(a), label(b), label(spec)),
                        fmt::format("({}, {}, {}){}{}", s.m, s.n, s.k, bias ? " bias" : "",
                                    accumulate ? " accumulated" : ""),
                        {codes(a, s.m, s.k, wild), scales(a, s.m, s.k), codes(b, s.n, s.k, wild),
                         scales(b, s.n, s.k), flat(data_.ordinary(DType::bf16, 1, s.n)),
                         data_.output(spec.output, s.m, s.n)},
                        [spec, a, b, s, bias, accumulate](Backend& backend, const Views& t) {
                          const QuantizedOperand left = operand_at(a, s.m, s.k, t, 0);
                          const QuantizedOperand right = operand_at(b, s.n, s.k, t, 2);
                          backend.run(ops::Gemm{spec, left, right, bias ? t[4] : TensorView{},
                                                accumulate, t[5]});
                        }});
    }
  }

  KernelData data_;
  int round_;
  std::vector<KernelCall> calls_;
};

}  // namespace

std::vector<KernelCall> gemm_calls(std::uint64_t seed, int round) {
  return GemmCalls(seed, round).draw();
}

}  // namespace fp8lab
