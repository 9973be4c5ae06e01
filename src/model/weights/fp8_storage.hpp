// How FP8 weights lie in the files that inference engines read: codes F8_E4M3 under the weight's
// name and decode scales F32 beside them. Two conventions:
//   blocks of RxC   "X.weight_scale_inv" (ceil(N/R), ceil(K/C)); quant_method "fp8" with
//                   weight_block_size, as DeepSeek-V3 and Qwen3-FP8 have it
//   tensor, row     "X.weight_scale" (1) or (N, 1); quant_method "compressed-tensors" with strategy
//                   "tensor" or "channel", as vLLM's tools write it
// Read are also the per-tensor files of quant_method "fp8", and blocks of compressed-tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/io/tensors/safetensors_header.hpp"
#include "src/model/dialects/weight_layout.hpp"

namespace fp8lab {

/// Blocks that a quantization_config names, nothing when it names none. Throws Error naming
/// `origin` and the field for methods whose weights are not FP8.
std::optional<StoredScaleTile> read_quantization_config(const nlohmann::json& config,
                                                        const std::string& origin);

/// The tile of scales of shape `scale` beside `weight`; `blocks` as the config names them. Throws
/// Error naming `origin` and the tensor for shapes that fit no convention.
StoredScaleTile tile_of_scales(const TensorHeader& weight, const TensorHeader& scale,
                               const std::optional<StoredScaleTile>& blocks,
                               const std::string& origin);

}  // namespace fp8lab
