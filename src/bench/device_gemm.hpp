// Benchmark of the GEMM kernels on the GPU, compared with cuBLASLt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fp8lab {

/// One GEMM in one mode; speeds are medians in 1e12 floating-point operations per second.
struct DeviceGemmRow {
  std::string mode;   ///< "tensor fast", "1x128 by 128x128", ...
  std::string layer;  ///< "7B.down.T8192"
  std::string pass;   ///< "fprop", "dgrad", "wgrad" or "square"
  std::int64_t m = 0, n = 0, k = 0;
  double own = 0;
  double library = 0;
  double ratio = 0;           ///< own / library
  int split_k = 1;            ///< split-K of the library; this kernel uses 1
  std::string algorithm;      ///< algorithm of the library, in one line
  bool library_bf16 = false;  ///< the library refuses the mode and multiplies the BF16 sources
};

struct DeviceGemmBench {
  std::string device;
  std::string library;
  std::vector<DeviceGemmRow> rows;  ///< by mode, then by shape
};

/// Multiplies K-major operands quantized from bell-shaped BF16 values, with BF16 output: the linear
/// layers of Qwen2 with 1.5B and 7B parameters at 8192 and 16384 tokens, and two squares. Library
/// and kernel run alternately, `repeats` times after a warm-up, between CUDA events, each after a
/// write that evicts the L2 cache. Quantization and the copy of the scales into the library's
/// layout are not timed, and the library writes the row-major D directly. If a kernel converts
/// codes to another format, the conversion is timed with it. Throws Error if there is no device.
DeviceGemmBench bench_device_gemm(int repeats);

/// Returns the geometric mean of `ratio` over the rows of a mode.
double mean_ratio(const DeviceGemmBench& bench, const std::string& mode);

}  // namespace fp8lab
