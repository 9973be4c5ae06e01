// Reproducible values for benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/numerics/codec.hpp"
#include "emulation/numerics/philox.hpp"

namespace fp8lab {

/// Returns BF16 sums of four uniform values: approximately normal, which suffices for a benchmark.
inline std::vector<std::uint16_t> bell_values(std::int64_t count) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const numerics::PhiloxCounter bits = numerics::random_block(1, 0, 0, 0, i);
    float sum = -2.0f;
    for (const std::uint32_t word : bits.word) sum += static_cast<float>(word >> 8) * 0x1p-24f;
    values[i] = numerics::to_bf16(sum);
  }
  return values;
}

}  // namespace fp8lab
