// What the CUDA backend has no kernel for is refused by name; no device is needed to say so.
#include <catch2/catch.hpp>

#include "emulation/cpu/operations.hpp"
#include "emulation/ops/gemm/gemm_plan.hpp"
#include "emulation/spec/current_scaling.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/runtime/operations.hpp"

using namespace fp8lab;

namespace {

GemmSpec promoted(Accumulator accumulator, int interval) {
  GemmSpec spec;
  spec.accumulator = accumulator;
  spec.schedule = Schedule::promote;
  spec.promote_interval = interval;
  return spec;
}

}  // namespace

TEST_CASE("cuda takes BF16 GEMMs with scales inside the sum") {
  const GemmSpec spec = promoted(Accumulator::sm90_bf16, 16);
  const QuantSpec group = quantized(numerics::kE2M1, {1, 16});
  const QuantSpec block = quantized(numerics::kE2M1, {16, 16});
  const QuantSpec row = quantized(numerics::kE2M1, {1, 0});
  for (const QuantSpec& b : {group, block, row, QuantSpec{}}) {
    CHECK(cuda::device_gemm_refusal(spec, group, b).empty());
  }
  CHECK(cuda::device_gemm_refusal(promoted(Accumulator::sm90_bf16, 32), group, group) ==
        gemm_refusal(promoted(Accumulator::sm90_bf16, 32), group, group));
  CHECK(!gemm_refusal(promoted(Accumulator::sm90_bf16, 32), group, group).empty());
}

TEST_CASE("cuda refuses the accumulator of CDNA3, and FP16 and TF32 operands") {
  const auto refusal = [](const Accumulator& accumulator) {
    GemmSpec spec;
    spec.accumulator = accumulator;
    const QuantSpec own = accumulator.default_operand();
    return cuda::device_gemm_refusal(spec, own, own);
  };
  CHECK_THAT(refusal(Accumulator::cdna3_fp8),
             Catch::Contains("cdna3_fp8 is emulated by backend cpu only"));
  CHECK_THAT(refusal(Accumulator::sm70_f16), Catch::Contains("backend cpu only"));
  CHECK_THAT(refusal(Accumulator::sm80_tf32), Catch::Contains("backend cpu only"));
  CHECK(refusal(Accumulator::sm80_bf16).empty());
  CHECK(refusal(Accumulator::sm89_mma_fp8).empty());
}
