// A question that recorded vectors leave open: does wgmma return the same bits when A comes from
// registers? Measuring code for the tests; no kernel of the backend uses it.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm_wgmma.hpp"

namespace fp8lab::cuda {

/// Tiles to multiply: A tile i (64, 32 bytes of K) times B tile j (8, 32 bytes of K) transposed,
/// plus C tile j (64, 8). Codes are contiguous along K, tiles one behind the other; host memory.
struct WgmmaProbe {
  WgmmaTypes types = WgmmaTypes::e4m3_e4m3;
  int tiles = 0;
  int partners = 0;  ///< tile i of A meets tiles i, i + 1, ... of B and C, modulo `tiles`
  const void* a = nullptr;
  const void* b = nullptr;
  const float* c = nullptr;
};

struct WgmmaProbeResult {
  std::uint64_t outputs = 0;
  std::uint64_t registers_shared = 0;  ///< bits differ: A from registers, A from shared memory
  std::uint64_t registers_model = 0;   ///< A from registers, numerics::fused_group
  /// Smallest index of an output that differs, ((i * partners + j) * 64 + row) * 8 + column; or
  /// `outputs`.
  std::uint64_t first = 0;
};

/// One wgmma m64n8 for each pair of tiles in both ways, compared with the emulator's model, bit for
/// bit, on the current device. Throws RuntimeFailure when a CUDA call fails, and Error for s8.
WgmmaProbeResult probe_wgmma_registers(const WgmmaProbe& probe);

}  // namespace fp8lab::cuda
