// GEMMs whose last tiles are shared by blocks that hand over their sums: one tile more than the
// device has multiprocessors, and K long enough to pay.
#include <catch2/catch.hpp>

#include <string>

#include "tests/kernels/operand_case.hpp"

namespace fp8lab::test {
namespace {

void compare(const GemmSpec& spec, const QuantSpec& qa, const QuantSpec& qb, std::int64_t tile_m,
             std::int64_t n) {
  const std::int64_t m = tile_m * (device_backend()->context().multiprocessors() + 1) - 7;
  const std::int64_t k = 1700;
  check_product(label(spec) + " " + label(qa) + " x " + label(qb), spec, {qa, m, k, 11},
                {qb, n, k, 12}, filled(spec.output, m, n, Fill::ordinary, 13, {16, 16}),
                filled(DType::bf16, 1, 0, Fill::ordinary, 1), false);
}

}  // namespace

TEST_CASE("cuda GEMMs that share tiles") {
  if (device_backend() == nullptr) return;
  const QuantSpec tensor = quantized(numerics::kE4M3, {0, 0});
  const QuantSpec group = quantized(numerics::kE4M3, {1, 128});
  const QuantSpec block = quantized(numerics::kE4M3, {128, 128});
  for (const DType output : {DType::bf16, DType::f32}) {
    compare(fp8_gemm(Schedule::fast, output), tensor, tensor, 128, 250);
    compare(fp8_gemm(Schedule::promote, output), tensor, tensor, 128, 120);
    compare(fp8_gemm(Schedule::promote, output), group, block, 192, 120);
    compare(fp8_gemm(Schedule::promote, output), group, group, 256, 120);
    GemmSpec bf16;
    bf16.accumulator = Accumulator::sm90_bf16;
    bf16.output = output;
    compare(bf16, {}, {}, 128, 250);
  }
}

}  // namespace fp8lab::test
