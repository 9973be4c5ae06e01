#include "emulation/spec/tensor_core.hpp"

#include "emulation/base/error.hpp"

namespace fp8lab {
namespace {

using numerics::ScaleFormat;

// The simulator's class for the instruction, in mmasim/simulator/nv_ptx.py.
constexpr std::string_view kSimulatedRtxBlackwell =
    "MMA-Sim (arXiv:2511.10909), mma on RTX Blackwell";
constexpr std::string_view kSimulatedCdna3 = "MMA-Sim (arXiv:2511.10909), v_mfma on CDNA3";
constexpr std::string_view kSimulatedTcgen05 = "MMA-Sim (arXiv:2511.10909), tcgen05mma";
constexpr std::string_view kSimulatedBlockScale =
    "MMA-Sim (arXiv:2511.10909), tcgen05mma_block_scale";

// Published hardware results of the authors; `validate thirdparty` replays them.
constexpr std::string_view kRecorded =
    "Khattak and Mikaitis (arXiv:2512.07004), validation data of their models";

// Our own runs on hardware.
constexpr std::string_view kMeasured = "emulation/specification.md, Tensor cores";

constexpr TensorCoreProfile kProfiles[] = {
    {"sm90_wgmma_fp8", Accumulator::sm90_wgmma_fp8, Evidence::measured, kMeasured,
     "4 x 4.30e9 outputs of wgmma on an H200 and 4.71e8 of cuBLASLt, 0 differences"},
    {"sm90_wgmma_fp8_f16", Accumulator::sm90_wgmma_fp8_f16, Evidence::measured, kMeasured,
     "4 x 4.30e9 outputs of wgmma on an H200, 0 differences"},
    {"sm90_mma_sync_fp8", Accumulator::sm90_mma_sync_fp8, Evidence::measured, kMeasured,
     "4 x 4.30e9 outputs of mma.sync on an H200, 0 differences"},
    {"sm90_mma_sync_fp8_f16", Accumulator::sm90_mma_sync_fp8_f16, Evidence::measured, kMeasured,
     "4 x 4.30e9 outputs of mma.sync on an H200, 0 differences"},
    {"sm90_bf16", Accumulator::sm90_bf16, Evidence::measured, kMeasured,
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200 and 5.9e6 of cuBLASLt, 0 differences"},
    {"sm90_f16", Accumulator::sm90_f16, Evidence::measured, kMeasured,
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200, 0 differences"},
    {"sm90_f16_f16acc", Accumulator::sm90_f16_f16acc, Evidence::measured, kMeasured,
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200, 0 differences"},
    {"sm90_tf32", Accumulator::sm90_tf32, Evidence::replayed, kRecorded,
     "10 000 results of H100 and H200 with K = 4, 0 differences; that 8 products are one group and "
     "the floor are published (MATLAB models, MMA-Sim)"},
    {"sm70_f16", Accumulator::sm70_f16, Evidence::replayed, kRecorded,
     "5000 results of V100, 0 differences; one group each"},
    {"sm70_f16_f16acc", Accumulator::sm70_f16_f16acc, Evidence::replayed, kRecorded,
     "5000 results of V100, 0 differences; one group each; any F from 22 gives them"},
    {"sm80_bf16", Accumulator::sm80_bf16, Evidence::replayed, kRecorded,
     "10 000 results of A100 and A2, 0 differences; one group each, which none takes to the floor"},
    {"sm80_f16", Accumulator::sm80_f16, Evidence::replayed, kRecorded,
     "10 000 results of A100 and A2, 0 differences; one group each, which none takes to the floor"},
    {"sm80_f16_f16acc", Accumulator::sm80_f16_f16acc, Evidence::replayed, kRecorded,
     "10 000 results of A100 and A2, 0 differences; one group each; any F from 24 gives them"},
    {"sm80_tf32", Accumulator::sm80_tf32, Evidence::replayed, kRecorded,
     "10 000 results of A100 and A2, 0 differences; one group each, which none takes to the floor"},
    {"sm89_bf16", Accumulator::sm80_bf16, Evidence::replayed, kRecorded,
     "5000 results of Ada, which are also those of L40S, 0 differences; one group each, which none "
     "takes to the floor"},
    {"sm89_f16", Accumulator::sm80_f16, Evidence::replayed, kRecorded,
     "5000 results of Ada, which are also those of L40S, 0 differences; one group each, which none "
     "takes to the floor"},
    {"sm89_f16_f16acc", Accumulator::sm80_f16_f16acc, Evidence::replayed, kRecorded,
     "5000 results of Ada, which are also those of L40S, 0 differences; one group each; any F from "
     "22 gives them"},
    {"sm89_tf32", Accumulator::sm80_tf32, Evidence::replayed, kRecorded,
     "5000 results of Ada, which are also those of L40S, 0 differences; one group each, which none "
     "takes to the floor"},
    {"sm89_mma_fp8", Accumulator::sm89_mma_fp8, Evidence::replayed, kRecorded,
     "10 000 results of Ada, which are also those of L40S, 0 differences; e4m3 by e5m2 is "
     "published (MMA-Sim)"},
    {"sm89_mma_fp8_f16", Accumulator::sm89_mma_fp8_f16, Evidence::replayed, kRecorded,
     "10 000 results of Ada, 0 differences; e4m3 by e5m2 is published (MMA-Sim)"},
    {"sm100_bf16", Accumulator::sm90_bf16, Evidence::replayed, kRecorded,
     "5000 results of mma on B200, 0 differences; one group each, which none takes to the floor"},
    {"sm100_f16", Accumulator::sm90_f16, Evidence::replayed, kRecorded,
     "5000 results of mma on B200, 0 differences; one group each, which none takes to the floor"},
    {"sm100_f16_f16acc", Accumulator::sm90_f16_f16acc, Evidence::replayed, kRecorded,
     "5000 results of mma on B200, 0 differences; one group each; any F from 25 gives them"},
    {"sm100_tf32", Accumulator::sm90_tf32, Evidence::replayed, kRecorded,
     "5000 results of mma on B200 with K = 4, 0 differences; that 8 products are one group and the "
     "floor are published (MATLAB models)"},
    {"sm100_mma_sync_fp8", Accumulator::sm90_mma_sync_fp8, Evidence::replayed, kRecorded,
     "10 000 results of mma on B200, 0 differences; e4m3 by e5m2 is not in them"},
    {"sm100_mma_sync_fp8_f16", Accumulator::sm90_mma_sync_fp8_f16, Evidence::replayed, kRecorded,
     "10 000 results of mma on B200, 0 differences; e4m3 by e5m2 is not in them"},
    {"sm100_f8f6f4", Accumulator::sm100_f8f6f4, Evidence::published, kSimulatedTcgen05,
     "not on hardware; tcgen05 alone, mma on B200 is sm100_mma_sync_fp8; 6-bit and 4-bit elements "
     "are assumed to act as their e4m3 values"},
    {"sm120_mma_fp8", Accumulator::sm100_f8f6f4, Evidence::published, kSimulatedRtxBlackwell,
     "not on hardware; for mma on B200 the simulator has this rule too, and 3557 of 10 000 results "
     "differ from it"},
    {"sm100_mxf8f6f4", Accumulator::sm100_mxf8f6f4, Evidence::published, kSimulatedBlockScale,
     "not on hardware; 6-bit and 4-bit elements are assumed to act as their e4m3 values, zero "
     "terms "
     "as a floor of -126"},
    {"sm100_mxf4nvf4", Accumulator::sm100_mxf4nvf4, Evidence::published, kSimulatedBlockScale,
     "not on hardware; zero terms are assumed to act as a floor of -126"},
    {"cdna3_fp8", Accumulator::cdna3_fp8, Evidence::published, kSimulatedCdna3,
     "not on hardware; zero products are assumed to have no exponent"},
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
    case Evidence::replayed: return "replayed";
    case Evidence::published: return "published";
    case Evidence::definition: return "definition";
  }
  return "?";
}

}  // namespace fp8lab
