// The named accumulators, with the evidence for each.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "emulation/spec/accumulator.hpp"

namespace fp8lab {

/// The evidence that a profile is right, from the strongest to the weakest.
enum class Evidence : std::uint8_t {
  measured,    ///< compared bit for bit with the instruction on our own hardware
  replayed,    ///< reproduces hardware results that others recorded, bit for bit
  published,   ///< a rule of the literature that we have not checked on hardware
  definition,  ///< no hardware: the profile defines itself
};

struct TensorCoreProfile {
  std::string_view name;
  Accumulator accumulator;
  Evidence evidence = Evidence::definition;
  std::string_view source;   ///< where the rule is published
  std::string_view checked;  ///< what was compared, and what was assumed
};

/// Returns all named accumulators. If units of several chips have the same parameters, there is a
/// row for each, with the evidence from that chip.
std::span<const TensorCoreProfile> tensor_core_profiles();

/// Returns the first row with these parameters, whose name is the canonical
/// one; null if there is none.
const TensorCoreProfile* profile_of(const Accumulator& accumulator);

/// Returns the format of block scales inside an instruction: kE8M0 or kE4M3. No other
/// scale format occurs there.
numerics::FormatSpec block_scale_format(numerics::ScaleFormat format);

/// Returns "measured", "replayed", "published" or "definition".
std::string_view evidence_name(Evidence evidence);

}  // namespace fp8lab
