// Quantizes two matrices of small integers and multiplies them as an H200 would.
#include <cstdio>
#include <vector>

#include "emulation/cpu/cpu_backend.hpp"
#include "emulation/cpu/simd/target.hpp"
#include "emulation/reference/gemm_reference.hpp"
#include "emulation/reference/operand_hash.hpp"
#include "emulation/reference/truth_backend.hpp"
#include "emulation/spec/recipe.hpp"

namespace {

using namespace fp8lab;  // NOLINT: the subject of every line

constexpr std::int64_t kRows = 3, kDepth = 160;

/// e4m3 codes with 1x128 scales of (kRows, kDepth) values first, first + 1, ... modulo 5, minus 2.
QuantizedOperand quantized(Backend& backend, int first) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < kRows * kDepth; ++i) {
    values.push_back(static_cast<float>((first + i) % 5 - 2));
  }
  const TensorView source = backend.allocate(DType::f32, kRows, kDepth);
  backend.upload(source, values.data());
  QuantizedOperand operand;
  operand.spec.format = numerics::kE4M3;
  operand.spec.tile = {1, 128};
  operand.spec.scale_source = ScaleSource::current;
  operand.spec.scale.format = numerics::ScaleFormat::pow2;
  operand.spec.scale.rounding = numerics::ScaleRounding::ceil;  // no element saturates
  operand.rows = kRows;
  operand.k = kDepth;
  operand.codes = backend.allocate(DType::u8, kRows, kDepth);
  operand.scales = backend.allocate(DType::f32, kRows, operand.spec.tile_cols(kDepth));
  backend.run(ops::Quantize{.source = source, .operand = operand});
  return operand;
}

/// The exact dot product of row `m` of the first matrix and row `n` of the second.
float expected(std::int64_t m, std::int64_t n) {
  std::int64_t sum = 0;
  for (std::int64_t k = 0; k < kDepth; ++k) {
    sum += ((m * kDepth + k) % 5 - 2) * ((3 + n * kDepth + k) % 5 - 2);
  }
  return static_cast<float>(sum);
}

}  // namespace

int main() {
  cpu::CpuBackend backend(2);
  const QuantizedOperand a = quantized(backend, 0), b = quantized(backend, 3);
  GemmSpec spec;
  spec.accumulator = Accumulator::sm90_wgmma_fp8;
  spec.schedule = Schedule::promote;
  spec.promote_interval = 64;
  spec.output = DType::f32;
  const TensorView d = backend.allocate(DType::f32, kRows, kRows);
  backend.run(ops::Gemm{spec, a, b, {}, false, d});
  std::vector<float> products(kRows * kRows);
  backend.download(products.data(), d);
  int wrong = 0;
  for (std::int64_t i = 0; i < kRows * kRows; ++i) {
    const float got = products[static_cast<std::size_t>(i)];
    if (got == expected(i / kRows, i % kRows)) continue;
    ++wrong;
    std::printf("element %d: %g, expected %g\n", static_cast<int>(i), static_cast<double>(got),
                static_cast<double>(expected(i / kRows, i % kRows)));
  }
  return wrong == 0 ? 0 : 1;
}
