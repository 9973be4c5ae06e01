// How fast the emulated GEMM is, beside the best FP32 GEMM of the same instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/cpu/simd/target.hpp"

namespace fp8lab {

/// One measurement on one thread. Speeds are medians in 1e9 multiply-adds a second.
struct GemmBenchRow {
  std::string operation;  ///< "fp8 promote:128", "fp8 1x128", "bf16" or an accumulator's name
  std::string target;     ///< SIMD target of the emulation
  std::int64_t m = 0, n = 0, k = 0;
  double gigamac_per_second = 0;
  double peer_gigamac_per_second = 0;
  /// Emulation over peer: the median of the rounds' ratios, as both run in turn in every round and
  /// the processor's clock changes between rounds.
  double ratio = 0;
  /// The faster of the FP32 libraries and its instruction set: "eigen avx2", "openblas Haswell".
  std::string peer;
};

struct GemmBenchOptions {
  /// (M, N, K): the square case and shapes of model layers.
  std::vector<std::array<std::int64_t, 3>> shapes = {{1024, 1024, 1024},
                                                     {1024, 512, 256},
                                                     {1024, 256, 512},
                                                     {2048, 1536, 512},
                                                     {4096, 1024, 1024}};
  std::vector<cpu::SimdTarget> targets = {cpu::active_target()};
  int repeats = 5;
};

/// Measures FP8 (tensor scales with promote:128, and 1x128 by 128x128 scales) and BF16 GEMMs,
/// packing and epilogue included, on Gaussian data; on the first shape also every accumulator that
/// has a vector kernel, with its own operands and the schedule fast. The peers are Eigen and, when
/// the shared library is installed, OpenBLAS, each with the instructions of the target that they
/// stand beside; they run in turn with the emulation in the same process, one thread each.
std::vector<GemmBenchRow> bench_gemm(const GemmBenchOptions& options);

/// Another emulator's speed on one core of a Xeon with AVX-512 and AMX, as recorded in
/// November 2026 on the peers' own hosts; not measured here.
struct EmulatorPeer {
  std::string_view name;
  std::string_view arithmetic;  ///< what it computes
  double mac_per_second;        ///< the faster end of the recorded range
  std::string_view operation;   ///< GemmBenchRow::operation that does the same
};

/// MMA-Sim evaluates one output after another with the arithmetic of the tensor core; microxcaling
/// quantizes to MX blocks and multiplies in FP32, so it stands beside the exact MX instruction and
/// beside FP32 sums.
inline constexpr EmulatorPeer kEmulatorPeers[] = {
    {"MMA-Sim c785138", "wgmma m64n8k32 e4m3, bit-exact", 1.93e5, "sm90_wgmma_fp8"},
    {"microxcaling 7bc4195", "MX matmul 1024x1024x1024, FP32 sums", 7.2e9, "sm100_mxf8f6f4"},
    {"microxcaling 7bc4195", "MX matmul 1024x1024x1024, FP32 sums", 7.2e9, "ideal_fp32"},
};

}  // namespace fp8lab
