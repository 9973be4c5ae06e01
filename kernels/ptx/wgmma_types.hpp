// Operand types of the wgmma instructions in use.
#pragma once

#include <cstdint>

namespace fp8lab::cuda {

/// What the two operands hold; the first letter pair is A's.
enum class WgmmaTypes : std::uint8_t { e4m3_e4m3, e4m3_e5m2, e5m2_e4m3, e5m2_e5m2, bf16 };

}  // namespace fp8lab::cuda
