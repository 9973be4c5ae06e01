// The multiply-add unit of a GEMM, described as data.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "emulation/base/input_error.hpp"
#include "emulation/numerics/schedule.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Block scales of an instruction: one for `width` elements along K. Width 0: none.
struct BlockScale {
  numerics::ScaleFormat format = numerics::ScaleFormat::e8m0;
  int width = 0;

  constexpr bool operator==(const BlockScale&) const = default;
};

/// Parameters of an accumulator. Every valid record can run on the CPU: with a vectorised chain if
/// one has these parameters, else with the reference. Named accumulators are listed with their
/// evidence in tensor_core.hpp (specification.md, "Tensor cores"). Accumulators are FP32 unless
/// `group.output` says otherwise.
struct Accumulator {
  numerics::ChainUnit unit = numerics::ChainUnit::fused_group;
  /// For ChainUnit::fused_group. mma_sync_fp8 uses only the accumulator's format.
  numerics::GroupModel group{};
  numerics::FormatSpec operand = numerics::kE4M3;  ///< other formats are carried into it exactly
  bool takes_e5m2 = false;  ///< also accepts E5M2, in any pairing: see second_operand
  std::array<BlockScale, 2> block_scales{};  ///< alternatives, if group.block_scales

  constexpr bool operator==(const Accumulator&) const = default;

  /// Returns the products that one step of a chain sums; promotion intervals are whole steps.
  int products() const;
  /// Returns true if operands are codes of at most 8 bits.
  bool takes_codes() const { return operand.bits() <= 8; }
  /// Returns kE5M2, or kE5M2Fnuz if `operand` encodes NaN as -0; empty unless takes_e5m2.
  std::optional<numerics::FormatSpec> second_operand() const;
  /// Returns the format that carries every value of `format` into the
  /// multiplier; empty if none does.
  std::optional<numerics::FormatSpec> carrier(const numerics::FormatSpec& format) const;
  /// Returns the multiplier's own format (bf16 for the ideal sums). It is unscaled, unless the
  /// instruction takes block scales: then it has the finest of them, with powers of two rounded up
  /// so that nothing saturates.
  QuantSpec default_operand() const;
  /// Returns true if the instruction takes the scales of `spec`.
  bool takes_scales(const QuantSpec& spec) const;

  static const Accumulator sm90_wgmma_fp8;
  static const Accumulator sm90_wgmma_fp8_f16;
  static const Accumulator sm90_mma_sync_fp8;
  static const Accumulator sm90_mma_sync_fp8_f16;
  static const Accumulator sm90_bf16;
  static const Accumulator sm90_f16;
  static const Accumulator sm90_f16_f16acc;
  static const Accumulator sm90_tf32;
  static const Accumulator sm70_f16;
  static const Accumulator sm70_f16_f16acc;
  static const Accumulator sm80_bf16;
  static const Accumulator sm80_f16;
  static const Accumulator sm80_f16_f16acc;
  static const Accumulator sm80_tf32;
  static const Accumulator sm89_mma_fp8;
  static const Accumulator sm89_mma_fp8_f16;
  static const Accumulator sm100_f8f6f4;
  static const Accumulator sm100_mxf8f6f4;
  static const Accumulator sm100_mxf4nvf4;
  static const Accumulator cdna3_fp8;
  static const Accumulator ideal_fp32;
  static const Accumulator ideal_exact;
};

namespace detail {
inline constexpr BlockScale kMx32{numerics::ScaleFormat::e8m0, 32};
inline constexpr BlockScale kNv16{numerics::ScaleFormat::e4m3, 16};
}  // namespace detail

/// Groups of 32, 13 fraction bits, FP32 truncated to 13 mantissa bits.
inline constexpr Accumulator Accumulator::sm90_wgmma_fp8{
    numerics::ChainUnit::fused_group, numerics::kSm90WgmmaFp8F32, numerics::kE4M3, true, {}};
/// As above, with an FP16 accumulator.
inline constexpr Accumulator Accumulator::sm90_wgmma_fp8_f16{
    numerics::ChainUnit::fused_group, numerics::kSm90WgmmaFp8F16, numerics::kE4M3, true, {}};
/// FP8 widened to FP16, two groups of 16, C added last.
inline constexpr Accumulator Accumulator::sm90_mma_sync_fp8{
    numerics::ChainUnit::mma_sync_fp8, numerics::kSm90Fp16F32, numerics::kE4M3, true, {}};
/// As above, with an FP16 accumulator.
inline constexpr Accumulator Accumulator::sm90_mma_sync_fp8_f16{
    numerics::ChainUnit::mma_sync_fp8, numerics::kSm90Fp16F16, numerics::kE4M3, true, {}};
/// Groups of 16, 25 fraction bits, FP32 truncated.
inline constexpr Accumulator Accumulator::sm90_bf16{
    numerics::ChainUnit::fused_group, numerics::kSm90Bf16F32, numerics::kBF16, false, {}};
/// As above, for FP16 operands.
inline constexpr Accumulator Accumulator::sm90_f16{
    numerics::ChainUnit::fused_group, numerics::kSm90Fp16F32, numerics::kFP16, false, {}};
/// As above, with an FP16 accumulator.
inline constexpr Accumulator Accumulator::sm90_f16_f16acc{
    numerics::ChainUnit::fused_group, numerics::kSm90Fp16F16, numerics::kFP16, false, {}};
/// Groups of 8, 25 fraction bits, FP32 truncated.
inline constexpr Accumulator Accumulator::sm90_tf32{
    numerics::ChainUnit::fused_group, numerics::kSm90Tf32F32, numerics::kTF32, false, {}};
/// Groups of 4, 23 fraction bits, FP32 truncated.
inline constexpr Accumulator Accumulator::sm70_f16{
    numerics::ChainUnit::fused_group, numerics::kSm70Fp16F32, numerics::kFP16, false, {}};
/// As above, with an FP16 accumulator.
inline constexpr Accumulator Accumulator::sm70_f16_f16acc{
    numerics::ChainUnit::fused_group, numerics::kSm70Fp16F16, numerics::kFP16, false, {}};
/// Groups of 8, 24 fraction bits, FP32 truncated.
inline constexpr Accumulator Accumulator::sm80_bf16{
    numerics::ChainUnit::fused_group, numerics::kSm80Bf16F32, numerics::kBF16, false, {}};
/// As above, for FP16 operands.
inline constexpr Accumulator Accumulator::sm80_f16{
    numerics::ChainUnit::fused_group, numerics::kSm80Bf16F32, numerics::kFP16, false, {}};
/// As above, with an FP16 accumulator.
inline constexpr Accumulator Accumulator::sm80_f16_f16acc{
    numerics::ChainUnit::fused_group, numerics::kSm80Fp16F16, numerics::kFP16, false, {}};
/// Groups of 4, 24 fraction bits, FP32 truncated.
inline constexpr Accumulator Accumulator::sm80_tf32{
    numerics::ChainUnit::fused_group, numerics::kSm80Tf32F32, numerics::kTF32, false, {}};
/// Groups of 16, 13 fraction bits, FP32 truncated to 13 mantissa bits.
inline constexpr Accumulator Accumulator::sm89_mma_fp8{
    numerics::ChainUnit::fused_group, numerics::kSm89MmaFp8F32, numerics::kE4M3, true, {}};
/// As above, with an FP16 accumulator.
inline constexpr Accumulator Accumulator::sm89_mma_fp8_f16{
    numerics::ChainUnit::fused_group, numerics::kSm89MmaFp8F16, numerics::kE4M3, true, {}};
/// Groups of 32, 25 fraction bits, FP32 truncated.
inline constexpr Accumulator Accumulator::sm100_f8f6f4{
    numerics::ChainUnit::fused_group, numerics::kSm100F8f6f4F32, numerics::kE4M3, true, {}};
/// As above, with an E8M0 scale per 32 elements inside the sum.
inline constexpr Accumulator Accumulator::sm100_mxf8f6f4{numerics::ChainUnit::fused_group,
                                                         numerics::kSm100Mxf8f6f4,
                                                         numerics::kE4M3,
                                                         true,
                                                         {{detail::kMx32}}};
/// Groups of 64 E2M1 products, with E8M0 scales per 32 or E4M3 scales per 16 inside the sum.
inline constexpr Accumulator Accumulator::sm100_mxf4nvf4{numerics::ChainUnit::fused_group,
                                                         numerics::kSm100Mxf4nvf4,
                                                         numerics::kE2M1,
                                                         false,
                                                         {{detail::kMx32, detail::kNv16}}};
/// Groups of 16, even and odd products summed separately, 24 fraction bits; the accumulator is
/// added last with 31, FP32 to nearest even.
inline constexpr Accumulator Accumulator::cdna3_fp8{
    numerics::ChainUnit::fused_group, numerics::kCdna3Fp8F32, numerics::kE4M3Fnuz, true, {}};
/// FP32 fused multiply-add, k ascending, round to nearest even.
inline constexpr Accumulator Accumulator::ideal_fp32{
    numerics::ChainUnit::ideal_fp32, {}, numerics::kFP32, false, {}};
/// Exact sum, rounded once to FP32 (to nearest even). For integer codes this equals the int32
/// accumulation of integer tensor cores and its conversion, while |sum| < 2^31 (int8: K < 133153).
inline constexpr Accumulator Accumulator::ideal_exact{
    numerics::ChainUnit::ideal_exact, {}, numerics::kFP32, false, {}};

/// Returns "sm90_wgmma_fp8", ... for a named accumulator (profile_of), else its parameters, for
/// example "custom(products=32,fraction_bits=14,output_mantissa_bits=23)". Further parameters
/// follow if they differ from those of sm90_wgmma_fp8.
std::string accumulator_name(const Accumulator& accumulator);

/// Inverse of accumulator_name; empty for other texts. Throws AccumulatorError as
/// custom_accumulator does.
std::optional<Accumulator> accumulator_by_name(std::string_view name);

/// Accumulator parameters that no unit can have, or that cannot be parsed.
class AccumulatorError : public InputError {
 public:
  using InputError::InputError;
};

/// One parameter in the form of a recipe: products, fraction_bits, output_mantissa_bits, output
/// (fp32 or fp16), output_rounding and alignment (truncate or nearest), min_exponent (an
/// integer or none), late_fraction_bits (0: the accumulator is a term of the group),
/// partial_sums and operand (a format).
struct AccumulatorParameter {
  std::string key, value;
};

/// Returns a fused-group unit with these parameters; the others are those of sm90_wgmma_fp8. Throws
/// AccumulatorError for unknown keys, values that cannot be parsed and parameters that
/// accumulator_refusal refuses.
Accumulator custom_accumulator(std::span<const AccumulatorParameter> values);

/// Returns why no unit can have these parameters: they must fit the integers of
/// numerics::fused_group. Empty if they do.
std::string accumulator_refusal(const Accumulator& accumulator);

/// Returns the arithmetic in one line, for example "groups of 32, 13 fraction
/// bits, fp32 cut to 13 bits".
std::string describe(const Accumulator& accumulator);

/// Returns the formats that it multiplies, for example "e4m3fn e5m2".
std::string operand_names(const Accumulator& accumulator);

}  // namespace fp8lab
