// How fast the GEMM kernels are on the GPU, beside cuBLASLt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fp8lab {

/// One GEMM in one mode; speeds are medians in 1e12 floating-point operations a second.
struct DeviceGemmRow {
  std::string mode;   ///< "tensor fast", "1x128 by 128x128", ...
  std::string layer;  ///< "7B.down.T8192"
  std::string pass;   ///< "fprop", "dgrad", "wgrad" or "square"
  std::int64_t m = 0, n = 0, k = 0;
  double own = 0;
  double library = 0;
  double ratio = 0;           ///< own over library
  int split_k = 1;            ///< of the library; ours is 1
  std::string algorithm;      ///< of the library, in one line
  bool library_bf16 = false;  ///< it refuses the mode, and multiplies the BF16 sources
};

struct DeviceGemmBench {
  std::string device;
  std::string library;
  std::vector<DeviceGemmRow> rows;  ///< by mode, then by shape
};

/// Multiplies K-major operands quantized from bell-shaped BF16 values, output BF16: the linear
/// layers of Qwen2 with 1.5B and 7B parameters at 8192 and 16384 tokens, and two squares. Library
/// and kernel run in turn, `repeats` times after a warm-up, between CUDA events, each after a write
/// that empties the L2 cache. Quantization and the copy of the scales into the library's layout
/// are not timed, and the library writes our row-major D directly. Codes that a kernel carries into
/// another format are timed with it. Throws Error without a device.
DeviceGemmBench bench_device_gemm(int repeats);

/// Geometric mean of `ratio` over the rows of a mode.
double mean_ratio(const DeviceGemmBench& bench, const std::string& mode);

}  // namespace fp8lab
