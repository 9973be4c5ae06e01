// The instruction set of the hot loops. Every target gives the same bits.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fp8lab::cpu {

enum class SimdTarget : std::uint8_t { portable, avx2, avx512, avx512_fp16, avx512_amx };

std::string_view name_of(SimdTarget target);

/// Returns the targets that were compiled in and that this processor runs, slowest first.
std::vector<SimdTarget> available_targets();

/// Returns the active target: the fastest available one, unless set_active_target changed it.
/// Throws RuntimeFailure if no target is available.
SimdTarget active_target();

/// Sets the active target. Throws Error if it is not available here.
/// Precondition: no work is running.
void set_active_target(SimdTarget target);

}  // namespace fp8lab::cpu
