// Benchmark of the emulated GEMM, compared with the best FP32 GEMM of the same instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/cpu/simd/target.hpp"

namespace fp8lab {

/// One measurement on one thread. Speeds are medians in 1e9 multiply-adds per second.
struct GemmBenchRow {
  std::string operation;  ///< "fp8 promote:128", "fp8 1x128", "bf16" or an accumulator's name
  std::string target;     ///< SIMD target of the emulation
  std::int64_t m = 0, n = 0, k = 0;
  double gigamac_per_second = 0;
  double peer_gigamac_per_second = 0;
  /// Emulation / peer, as the median of the ratios of the rounds: both run alternately in every
  /// round, since the processor's clock changes between rounds.
  double ratio = 0;
  /// The faster FP32 library and its instruction set: "eigen avx2", "openblas Haswell".
  std::string peer;
};

struct GemmBenchOptions {
  /// (M, N, K): a square case, and shapes of model layers.
  std::vector<std::array<std::int64_t, 3>> shapes = {{1024, 1024, 1024},
                                                     {1024, 512, 256},
                                                     {1024, 256, 512},
                                                     {2048, 1536, 512},
                                                     {4096, 1024, 1024}};
  std::vector<cpu::SimdTarget> targets = {cpu::active_target()};
  int repeats = 5;
};

/// Measures FP8 (tensor scales with promote:128, and 1x128 by 128x128 scales) and BF16 GEMMs
/// on Gaussian data, including packing and epilogue. On the first shape, also measures every
/// accumulator with a vector kernel, with its own operands and the schedule fast. The peers
/// are Eigen and, if the shared library is installed, OpenBLAS, each with the instructions of
/// the target it is compared with. They run alternately with the emulation in the same
/// process, on one thread each.
std::vector<GemmBenchRow> bench_gemm(const GemmBenchOptions& options);

/// Speed of another emulator on one core of a Xeon with AVX-512 and AMX, as recorded in November
/// 2026 on the peers' own hosts; not measured here.
struct EmulatorPeer {
  std::string_view name;
  std::string_view arithmetic;  ///< arithmetic that it computes
  double mac_per_second;        ///< upper end of the recorded range
  std::string_view operation;   ///< GemmBenchRow::operation with the same arithmetic
};

/// MMA-Sim evaluates one output at a time with the arithmetic of the tensor core. microxcaling
/// quantizes to MX blocks and multiplies in FP32, so it is compared with the exact MX
/// instruction and with FP32 sums.
inline constexpr EmulatorPeer kEmulatorPeers[] = {
    {"MMA-Sim c785138", "wgmma m64n8k32 e4m3, bit-exact", 1.93e5, "sm90_wgmma_fp8"},
    {"microxcaling 7bc4195", "MX matmul 1024x1024x1024, FP32 sums", 7.2e9, "sm100_mxf8f6f4"},
    {"microxcaling 7bc4195", "MX matmul 1024x1024x1024, FP32 sums", 7.2e9, "ideal_fp32"},
};

}  // namespace fp8lab
