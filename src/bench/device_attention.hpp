// Benchmark of the attention kernels on the GPU.
#pragma once

#include <string>
#include <vector>

#include "emulation/ops/attention/attention.hpp"

namespace fp8lab {

/// Measurement of one pass of one shape.
struct DeviceAttentionRow {
  AttentionShape shape;
  std::string pass;    ///< "forward", "forward, E4M3 blocks" or "tensors", "backward", or
                       ///< "cached, N new"
  double seconds = 0;  ///< median
  double tflops = 0;   ///< 1e12 flop/s: 4 D per visible pair of a head forward, 10 D backward
};

struct DeviceAttentionBench {
  std::string device;
  std::vector<DeviceAttentionRow> rows;
};

/// Measures both passes, and the pass of new tokens of each sequence against a cache of the
/// preceding ones (all tokens new, 256, and one). Inputs are bell-shaped BF16 values with q, k and
/// v in one matrix, at the shapes of Qwen2 with 0.5B, 1.5B and 7B parameters and at that of
/// FlashAttention-3's figures; a sequence is one document. The forward pass is measured in BF16
/// and on operands in E4M3, with a scale for each tile of keys and head, or for each tensor. Each
/// is measured `repeats` times after a warm-up, between CUDA events, after a write that evicts the
/// L2 cache. Throws Error if there is no device.
DeviceAttentionBench bench_device_attention(int repeats);

}  // namespace fp8lab
