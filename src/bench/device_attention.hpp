// How fast the attention kernels are on the GPU.
#pragma once

#include <string>
#include <vector>

#include "emulation/ops/attention.hpp"

namespace fp8lab {

/// One pass of one shape.
struct DeviceAttentionRow {
  AttentionShape shape;
  std::string pass;    ///< "forward", "backward" or "cached, N new"
  double seconds = 0;  ///< median
  double tflops = 0;   ///< 1e12 floating-point operations a second: 4 D for each visible pair of a
                       ///< head forward, 10 D backward
};

struct DeviceAttentionBench {
  std::string device;
  std::vector<DeviceAttentionRow> rows;
};

/// Both passes, and that of new tokens of each sequence against a cache of those before (all of
/// them new, 256, and one), over bell-shaped BF16 values, q, k and v in one matrix, at the shapes
/// of Qwen2 with 0.5B, 1.5B and 7B parameters: `repeats` times after a warm-up, between CUDA
/// events, each after a write that empties the L2 cache. A sequence is one document. Throws Error
/// without a device.
DeviceAttentionBench bench_device_attention(int repeats);

}  // namespace fp8lab
