// Which instruction set the hot loops use. Every target gives the same bits.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fp8lab::cpu {

enum class SimdTarget : std::uint8_t { portable, avx2, avx512, avx512_fp16, avx512_amx };

std::string_view name_of(SimdTarget target);

/// Targets that were compiled in and that this processor runs, slowest first.
std::vector<SimdTarget> available_targets();

/// The target in force: the fastest available one, unless set_active_target changed it. Throws
/// RuntimeFailure where none is.
SimdTarget active_target();

/// Throws Error when the target is not available here. Not to be called while work is running.
void set_active_target(SimdTarget target);

}  // namespace fp8lab::cpu
