// The types of mma.sync that the probes of a card run.
#pragma once

#include <cstdint>

namespace fp8lab::cuda {

/// Types of A, B and the accumulator.
enum class MmaTypes : std::uint8_t {
  e4m3_e4m3_f32,
  e4m3_e5m2_f32,
  e5m2_e4m3_f32,
  e5m2_e5m2_f32,
  e4m3_e4m3_f16,
  e5m2_e5m2_f16,
  bf16_f32,
  f16_f32,
  f16_f16,
  tf32_f32,
};

}  // namespace fp8lab::cuda
