// The accumulators that have a name, with the evidence for each.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "emulation/spec/accumulator.hpp"

namespace fp8lab {

/// How we know that a profile is right, from the strongest to the weakest.
enum class Evidence : std::uint8_t {
  measured,    ///< compared bit for bit with the instruction on our own hardware
  replayed,    ///< results of the hardware that others recorded are reproduced bit for bit
  published,   ///< a rule of the literature, not checked on hardware by us
  definition,  ///< no hardware: the profile is what it says
};

struct TensorCoreProfile {
  std::string_view name;
  Accumulator accumulator;
  Evidence evidence = Evidence::definition;
  std::string_view source;   ///< where the rule is written down
  std::string_view checked;  ///< what was compared, and what was assumed
};

/// Every named accumulator. Units of several chips can be one record: it then has a row for each,
/// with the evidence from that chip.
std::span<const TensorCoreProfile> tensor_core_profiles();

/// The first row with these parameters, whose name is the canonical one; null for those without.
const TensorCoreProfile* profile_of(const Accumulator& accumulator);

/// Format of block scales inside an instruction: kE8M0 or kE4M3. Other scale formats never get
/// there.
numerics::FormatSpec block_scale_format(numerics::ScaleFormat format);

/// "measured", "replayed", "published" or "definition".
std::string_view evidence_name(Evidence evidence);

}  // namespace fp8lab
