#include "emulation/spec/tensor_core.hpp"

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

using numerics::ScaleFormat;

// The simulator's class for the instruction, in mmasim/simulator/nv_ptx.py.
constexpr std::string_view kSimulatedWgmma = "MMA-Sim (arXiv:2511.10909), wgmma";
constexpr std::string_view kSimulatedAda = "MMA-Sim (arXiv:2511.10909), mma on Ada Lovelace";
constexpr std::string_view kSimulatedTcgen05 = "MMA-Sim (arXiv:2511.10909), tcgen05mma";
constexpr std::string_view kSimulatedBlockScale =
    "MMA-Sim (arXiv:2511.10909), tcgen05mma_block_scale";

constexpr TensorCoreProfile kProfiles[] = {
    {"sm90_wgmma_fp8", Accumulator::sm90_wgmma_fp8, Evidence::measured,
     "numerics.md sections 3 and 4.1",
     "4 x 4.30e9 outputs of wgmma on an H200 and 4.71e8 of cuBLASLt, 0 differences"},
    {"sm90_wgmma_fp8_f16", Accumulator::sm90_wgmma_fp8_f16, Evidence::measured,
     "numerics.md sections 3 and 4.2", "4 x 4.30e9 outputs of wgmma on an H200, 0 differences"},
    {"sm90_mma_sync_fp8", Accumulator::sm90_mma_sync_fp8, Evidence::measured,
     "numerics.md section 5", "4 x 4.30e9 outputs of mma.sync on an H200, 0 differences"},
    {"sm90_mma_sync_fp8_f16", Accumulator::sm90_mma_sync_fp8_f16, Evidence::measured,
     "numerics.md section 5", "4 x 4.30e9 outputs of mma.sync on an H200, 0 differences"},
    {"sm90_bf16", Accumulator::sm90_bf16, Evidence::measured, "numerics.md sections 3 and 4.3",
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200 and 5.9e6 of cuBLASLt, 0 differences"},
    {"sm90_f16", Accumulator::sm90_f16, Evidence::measured, "numerics.md sections 3 and 4.3",
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200, 0 differences"},
    {"sm90_f16_f16acc", Accumulator::sm90_f16_f16acc, Evidence::measured,
     "numerics.md sections 3 and 4.3",
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200, 0 differences"},
    {"sm90_tf32", Accumulator::sm90_tf32, Evidence::published, kSimulatedWgmma,
     "not on hardware; the floor -133 is that measured for bf16, the simulator's -126 was refuted "
     "there"},
    {"sm89_mma_fp8", Accumulator::sm89_mma_fp8, Evidence::published, kSimulatedAda,
     "not on hardware"},
    {"sm89_mma_fp8_f16", Accumulator::sm89_mma_fp8_f16, Evidence::published, kSimulatedAda,
     "not on hardware"},
    {"sm100_f8f6f4", Accumulator::sm100_f8f6f4, Evidence::published, kSimulatedTcgen05,
     "not on hardware; 6-bit and 4-bit elements are assumed to act as their e4m3 values"},
    {"sm100_mxf8f6f4", Accumulator::sm100_mxf8f6f4, Evidence::published, kSimulatedBlockScale,
     "not on hardware; 6-bit and 4-bit elements are assumed to act as their e4m3 values, zero "
     "terms "
     "as a floor of -126"},
    {"sm100_mxf4nvf4", Accumulator::sm100_mxf4nvf4, Evidence::published, kSimulatedBlockScale,
     "not on hardware; zero terms are assumed to act as a floor of -126"},
    {"ideal_fp32", Accumulator::ideal_fp32, Evidence::definition, "IEEE 754",
     "fp32 fused multiply-add, k ascending, to nearest even"},
    {"ideal_exact", Accumulator::ideal_exact, Evidence::definition, "arithmetic",
     "one rounding of the exact sum, to nearest even"},
};

}  // namespace

std::span<const TensorCoreProfile> tensor_core_profiles() { return kProfiles; }

const TensorCoreProfile* profile_of(const Accumulator& accumulator) {
  for (const TensorCoreProfile& profile : kProfiles) {
    if (profile.accumulator == accumulator) return &profile;
  }
  return nullptr;
}

numerics::FormatSpec block_scale_format(ScaleFormat format) {
  FP8LAB_ASSERT(format == ScaleFormat::e8m0 || format == ScaleFormat::e4m3);
  return format == ScaleFormat::e8m0 ? numerics::kE8M0 : numerics::kE4M3;
}

std::string_view evidence_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::measured: return "measured";
    case Evidence::published: return "published";
    case Evidence::definition: return "definition";
  }
  return "?";
}

}  // namespace fp8lab
