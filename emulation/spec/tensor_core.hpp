// Tensor-core profiles: the arithmetic behind each Accumulator as data, with its evidence.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "emulation/numerics/schedule.hpp"
#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// How we know that a profile is right.
enum class Evidence : std::uint8_t {
  measured,    ///< compared bit for bit with the instruction on our own hardware
  published,   ///< a rule of the literature, not checked on hardware by us
  definition,  ///< no hardware: the profile is what it says
};

/// Scales that an instruction takes: one for `width` elements along K. Width 0: none.
struct BlockScale {
  numerics::ScaleFormat format = numerics::ScaleFormat::e8m0;
  int width = 0;
};

struct TensorCoreProfile {
  Accumulator accumulator = Accumulator::sm90_bf16;
  std::string_view name;
  numerics::ChainUnit unit = numerics::ChainUnit::fused_group;
  /// Of ChainUnit::fused_group; of the accumulator only its format for mma_sync_fp8.
  numerics::GroupModel group{};
  numerics::FormatSpec operand;  ///< format of the multiplier; others are carried into it exactly
  bool takes_e5m2 = false;       ///< besides `operand`, in any pairing
  std::array<BlockScale, 2> block_scales{};  ///< alternatives, for group.block_scales
  Evidence evidence = Evidence::definition;
  std::string_view source;   ///< where the rule is written down
  std::string_view checked;  ///< what was compared, and what was assumed

  /// Products that one step of a chain sums: promotion intervals are whole steps.
  int products() const;
  /// True when operands are codes of at most 8 bits.
  bool takes_codes() const { return operand.bits() <= 8; }
  /// The format that carries every value of `format` into the multiplier; nothing when none does.
  std::optional<numerics::FormatSpec> carrier(const numerics::FormatSpec& format) const;
  /// The multiplier's own format (bf16 for the ideal sums), unscaled unless the instruction takes
  /// block scales: then with the finest of them, powers of two rounded up so that nothing
  /// saturates.
  QuantSpec default_operand() const;
  /// True when the instruction takes the scales that `spec` gives.
  bool takes_scales(const QuantSpec& spec) const;
};

/// Every profile, one for each Accumulator.
std::span<const TensorCoreProfile> tensor_core_profiles();

const TensorCoreProfile& profile_of(Accumulator accumulator);

/// Format of block scales inside an instruction: kE8M0 or kE4M3. Other scale formats never get
/// there.
numerics::FormatSpec block_scale_format(numerics::ScaleFormat format);

/// "measured", "published" or "definition".
std::string_view evidence_name(Evidence evidence);

/// The parameters in one line, for example "groups of 32, 13 fraction bits, fp32 cut to 13 bits".
std::string describe(const TensorCoreProfile& profile);

/// The formats it multiplies, for example "e4m3fn e5m2".
std::string operand_names(const TensorCoreProfile& profile);

}  // namespace fp8lab
