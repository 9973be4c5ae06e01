// Benchmark of the attention kernels on the GPU.
#pragma once

#include <string>
#include <vector>

#include "emulation/ops/attention/attention.hpp"

namespace fp8lab {

/// Measurement of one pass of one shape.
struct DeviceAttentionRow {
  AttentionShape shape;
  std::string pass;    ///< "forward", "backward" or "cached, N new"
  double seconds = 0;  ///< median
  double tflops = 0;   ///< 1e12 flop/s: 4 D per visible pair of a head forward, 10 D backward
};

struct DeviceAttentionBench {
  std::string device;
  std::vector<DeviceAttentionRow> rows;
};

/// Measures both passes, and the pass of new tokens of each sequence against a cache of the
/// preceding ones (all tokens new, 256, and one). Inputs are bell-shaped BF16 values with q, k and
/// v in one matrix, at the shapes of Qwen2 with 0.5B, 1.5B and 7B parameters; a sequence is one
/// document. Each is measured `repeats` times after a warm-up, between CUDA events, after a write
/// that evicts the L2 cache. Throws Error if there is no device.
DeviceAttentionBench bench_device_attention(int repeats);

}  // namespace fp8lab
