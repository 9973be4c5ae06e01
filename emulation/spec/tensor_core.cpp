#include "emulation/spec/tensor_core.hpp"

#include <fmt/format.h>

#include "emulation/base/error.hpp"
#include "emulation/numerics/codec.hpp"
#include "emulation/spec/recipe_names.hpp"

namespace fp8lab {
namespace {

using numerics::ChainUnit;
using numerics::OutputKind;
using numerics::ScaleFormat;

constexpr BlockScale kMx32{ScaleFormat::e8m0, 32};
constexpr BlockScale kNv16{ScaleFormat::e4m3, 16};

// The simulator's class for the instruction, in mmasim/simulator/nv_ptx.py.
constexpr std::string_view kSimulatedWgmma = "MMA-Sim (arXiv:2511.10909), wgmma";
constexpr std::string_view kSimulatedAda = "MMA-Sim (arXiv:2511.10909), mma on Ada Lovelace";
constexpr std::string_view kSimulatedTcgen05 = "MMA-Sim (arXiv:2511.10909), tcgen05mma";
constexpr std::string_view kSimulatedBlockScale =
    "MMA-Sim (arXiv:2511.10909), tcgen05mma_block_scale";

// mma.sync on FP8 with an accumulator of the given kind.
constexpr numerics::GroupModel lowered(OutputKind output) {
  return output == OutputKind::f16_nearest ? numerics::kSm90Fp16F16 : numerics::kSm90Fp16F32;
}

constexpr TensorCoreProfile kProfiles[] = {
    {Accumulator::sm90_wgmma_fp8,
     "sm90_wgmma_fp8",
     ChainUnit::fused_group,
     numerics::kSm90WgmmaFp8F32,
     numerics::kE4M3,
     true,
     {},
     Evidence::measured,
     "numerics.md sections 3 and 4.1",
     "4 x 4.30e9 outputs of wgmma on an H200 and 4.71e8 of cuBLASLt, 0 differences"},
    {Accumulator::sm90_wgmma_fp8_f16,
     "sm90_wgmma_fp8_f16",
     ChainUnit::fused_group,
     numerics::kSm90WgmmaFp8F16,
     numerics::kE4M3,
     true,
     {},
     Evidence::measured,
     "numerics.md sections 3 and 4.2",
     "4 x 4.30e9 outputs of wgmma on an H200, 0 differences"},
    {Accumulator::sm90_mma_sync_fp8,
     "sm90_mma_sync_fp8",
     ChainUnit::mma_sync_fp8,
     lowered(OutputKind::f32_truncated),
     numerics::kE4M3,
     true,
     {},
     Evidence::measured,
     "numerics.md section 5",
     "4 x 4.30e9 outputs of mma.sync on an H200, 0 differences"},
    {Accumulator::sm90_mma_sync_fp8_f16,
     "sm90_mma_sync_fp8_f16",
     ChainUnit::mma_sync_fp8,
     lowered(OutputKind::f16_nearest),
     numerics::kE4M3,
     true,
     {},
     Evidence::measured,
     "numerics.md section 5",
     "4 x 4.30e9 outputs of mma.sync on an H200, 0 differences"},
    {Accumulator::sm90_bf16,
     "sm90_bf16",
     ChainUnit::fused_group,
     numerics::kSm90Bf16F32,
     numerics::kBF16,
     false,
     {},
     Evidence::measured,
     "numerics.md sections 3 and 4.3",
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200 and 5.9e6 of cuBLASLt, 0 differences"},
    {Accumulator::sm90_f16,
     "sm90_f16",
     ChainUnit::fused_group,
     numerics::kSm90Fp16F32,
     numerics::kFP16,
     false,
     {},
     Evidence::measured,
     "numerics.md sections 3 and 4.3",
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200, 0 differences"},
    {Accumulator::sm90_f16_f16acc,
     "sm90_f16_f16acc",
     ChainUnit::fused_group,
     numerics::kSm90Fp16F16,
     numerics::kFP16,
     false,
     {},
     Evidence::measured,
     "numerics.md sections 3 and 4.3",
     "2 x 4.30e9 outputs of wgmma and mma.sync on an H200, 0 differences"},
    {Accumulator::sm90_tf32,
     "sm90_tf32",
     ChainUnit::fused_group,
     numerics::kSm90Tf32F32,
     numerics::kTF32,
     false,
     {},
     Evidence::published,
     kSimulatedWgmma,
     "not on hardware; the floor -133 is that measured for bf16, the simulator's -126 was refuted "
     "there"},
    {Accumulator::sm89_mma_fp8,
     "sm89_mma_fp8",
     ChainUnit::fused_group,
     numerics::kSm89MmaFp8F32,
     numerics::kE4M3,
     true,
     {},
     Evidence::published,
     kSimulatedAda,
     "not on hardware"},
    {Accumulator::sm89_mma_fp8_f16,
     "sm89_mma_fp8_f16",
     ChainUnit::fused_group,
     numerics::kSm89MmaFp8F16,
     numerics::kE4M3,
     true,
     {},
     Evidence::published,
     kSimulatedAda,
     "not on hardware"},
    {Accumulator::sm100_f8f6f4,
     "sm100_f8f6f4",
     ChainUnit::fused_group,
     numerics::kSm100F8f6f4F32,
     numerics::kE4M3,
     true,
     {},
     Evidence::published,
     kSimulatedTcgen05,
     "not on hardware; 6-bit and 4-bit elements are assumed to act as their e4m3 values"},
    {Accumulator::sm100_mxf8f6f4,
     "sm100_mxf8f6f4",
     ChainUnit::fused_group,
     numerics::kSm100Mxf8f6f4,
     numerics::kE4M3,
     true,
     {{kMx32}},
     Evidence::published,
     kSimulatedBlockScale,
     "not on hardware; 6-bit and 4-bit elements are assumed to act as their e4m3 values, zero "
     "terms "
     "as a floor of -126"},
    {Accumulator::sm100_mxf4nvf4,
     "sm100_mxf4nvf4",
     ChainUnit::fused_group,
     numerics::kSm100Mxf4nvf4,
     numerics::kE2M1,
     false,
     {{kMx32, kNv16}},
     Evidence::published,
     kSimulatedBlockScale,
     "not on hardware; zero terms are assumed to act as a floor of -126"},
    {Accumulator::ideal_fp32,
     "ideal_fp32",
     ChainUnit::ideal_fp32,
     {},
     numerics::kFP32,
     false,
     {},
     Evidence::definition,
     "IEEE 754",
     "fp32 fused multiply-add, k ascending, to nearest even"},
    {Accumulator::ideal_exact,
     "ideal_exact",
     ChainUnit::ideal_exact,
     {},
     numerics::kFP32,
     false,
     {},
     Evidence::definition,
     "arithmetic",
     "one rounding of the exact sum, to nearest even"},
};

constexpr bool in_enumerator_order() {
  for (std::size_t i = 0; i < std::size(kProfiles); ++i) {
    if (kProfiles[i].accumulator != static_cast<Accumulator>(i)) return false;
  }
  return std::size(kProfiles) == static_cast<std::size_t>(Accumulator::ideal_exact) + 1;
}
static_assert(in_enumerator_order());

}  // namespace

int TensorCoreProfile::products() const {
  switch (unit) {
    case ChainUnit::fused_group: return group.products;
    case ChainUnit::mma_sync_fp8: return 32;
    case ChainUnit::ideal_fp32:
    case ChainUnit::ideal_exact: break;
  }
  return 1;
}

std::optional<numerics::FormatSpec> TensorCoreProfile::carrier(
    const numerics::FormatSpec& format) const {
  if (takes_e5m2 && format == numerics::kE5M2) return format;
  if (numerics::holds_values(operand, format)) return operand;
  return std::nullopt;
}

QuantSpec TensorCoreProfile::default_operand() const {
  QuantSpec spec;
  if (operand != numerics::kFP32) spec.format = operand;
  if (!group.block_scales) return spec;
  BlockScale finest = block_scales[0];
  for (const BlockScale& scale : block_scales) {
    if (scale.width > 0 && scale.width < finest.width) finest = scale;
  }
  spec.scale_source = ScaleSource::current;
  spec.tile = {1, finest.width};
  spec.scale.format = finest.format;
  if (finest.format == ScaleFormat::e8m0) spec.scale.rounding = numerics::ScaleRounding::rceil;
  return spec;
}

bool TensorCoreProfile::takes_scales(const QuantSpec& spec) const {
  if (!spec.has_scale()) return false;
  for (const BlockScale& scale : block_scales) {
    const bool same = scale.format == spec.scale.format && scale.width == spec.tile.cols;
    if (scale.width > 0 && same) return true;
  }
  return false;
}

std::span<const TensorCoreProfile> tensor_core_profiles() { return kProfiles; }

const TensorCoreProfile& profile_of(Accumulator accumulator) {
  return kProfiles[static_cast<std::size_t>(accumulator)];
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

std::string describe(const TensorCoreProfile& profile) {
  const numerics::GroupModel& group = profile.group;
  const bool to_f16 = group.output == OutputKind::f16_nearest;
  switch (profile.unit) {
    case ChainUnit::ideal_fp32: return "fp32 fma, k ascending";
    case ChainUnit::ideal_exact: return "exact sum, fp32 nearest";
    case ChainUnit::mma_sync_fp8:
      return fmt::format("fp16 groups of 16 twice over 32, {} fraction bits, c added last in {}",
                         group.fraction_bits, to_f16 ? "fp16" : "fp32");
    case ChainUnit::fused_group: break;
  }
  std::string text =
      fmt::format("groups of {}, {} fraction bits, ", group.products, group.fraction_bits);
  text += to_f16 ? "fp16 nearest" : fmt::format("fp32 cut to {} bits", group.output_mantissa_bits);
  if (group.min_exponent != numerics::kNoExponentFloor) {
    text += fmt::format(", floor {}", group.min_exponent);
  }
  if (group.exact_products > 0) text += fmt::format(", exact {}s", group.exact_products);
  for (const BlockScale& scale : profile.block_scales) {
    if (scale.width == 0) continue;
    text +=
        fmt::format(", {} scale per {}", word_for(kScaleFormatNames, scale.format), scale.width);
  }
  return text;
}

std::string operand_names(const TensorCoreProfile& profile) {
  return format_name(profile.operand) + (profile.takes_e5m2 ? " e5m2" : "");
}

}  // namespace fp8lab
