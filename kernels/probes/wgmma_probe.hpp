// Checks what recorded vectors cannot show: whether wgmma returns the same bits when A comes from
// registers. Measuring code for the tests; no kernel of the backend uses it.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm_wgmma.hpp"

namespace fp8lab::cuda {

/// The tiles to multiply: A tile i (64, 32 bytes of K) times B tile j (8, 32 bytes of K)
/// transposed, plus C tile j (64, 8). Codes are contiguous along K, and tiles follow
/// each other, in host memory.
struct WgmmaProbe {
  WgmmaTypes types = WgmmaTypes::e4m3_e4m3;
  int tiles = 0;
  int partners = 0;  ///< tile i of A is paired with tiles i, i + 1, ... of B and C, modulo `tiles`
  const void* a = nullptr;
  const void* b = nullptr;
  const float* c = nullptr;
};

struct WgmmaProbeResult {
  std::uint64_t outputs = 0;
  std::uint64_t registers_shared = 0;  ///< differences: A from registers, from shared memory
  std::uint64_t registers_model = 0;   ///< differences: A from registers, numerics::fused_group
  /// Smallest index of an output that differs, ((i * partners + j) * 64 + row) * 8 + column, or
  /// `outputs` if none differs.
  std::uint64_t first = 0;
};

/// Runs one wgmma m64n8 for each pair of tiles in both ways on the current device, and compares the
/// bits with the emulator's model. Throws RuntimeFailure if a CUDA call fails, and Error for s8.
WgmmaProbeResult probe_wgmma_registers(const WgmmaProbe& probe);

}  // namespace fp8lab::cuda
