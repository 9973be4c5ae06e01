// The experts of a layer in one tensor: which of its extents their products sum over, how their
// codes and scales lie in files, and their quantization.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/model/dialects/quantized_weight.hpp"
#include "src/model/weights/model_tensors.hpp"
#include "src/model_files/model_folder.hpp"

namespace fp8lab {

/// The order of extents of a stack of experts' weights.
enum class ExpertOrder : std::uint8_t {
  out_in,  ///< (experts, out, in): y = x W^T, Mixtral and Qwen3-MoE of transformers 5, Granite
  in_out,  ///< (experts, in, out): y = x W, Llama 4, gpt-oss, the files of Qwen3-VL
};

/// Returns true for the name of a module that chooses experts, "router" among its parts.
bool is_router(const std::string& module);

/// Returns true for the weights of several experts in one tensor: 3-D ones of a mixture, and
/// DBRX's, whose experts share the rows of a matrix.
bool is_stacked_experts(const TensorHeader& header);

/// Returns the order of a stack by hidden_size of `config` and by what the projection does:
/// gate_up, gate, up, w1, w3 and input_linear read hidden_size channels; down, w2 and output_linear
/// write them. A stack of square matrices has the order of another one of its layer among
/// `headers`. Returns nothing where shapes and names do not tell.
std::optional<ExpertOrder> order_of_experts(const TensorHeader& header,
                                            const std::vector<TensorHeader>& headers,
                                            const nlohmann::json& config);

/// Returns why no library reads a stack of this order in `layout`; empty if one does. transformers
/// has stacks in the blocks of fine-grained FP8, each expert with blocks of its own, (experts,
/// ceil(rows / R), ceil(columns / C)) scales; blocks that are not square need out_in. torchao has
/// those of its formats whose tiles lie in a row, for out_in, and for in_out a scale of each
/// column. The other dialects have a tensor for each expert.
std::string refuse_stack(const WeightLayout& layout, std::optional<ExpertOrder> order);

/// Returns `layout` for a stack: tiles of rows are those of columns for in_out.
WeightLayout layout_of_stack(WeightLayout layout, std::optional<ExpertOrder> order);

/// Returns the tensors of a stack of `shape` (experts, rows, columns): codes, scales, and of two
/// levels the scale of all experts. Throws Error as layout_headers does, which names `weight`.
std::vector<TensorHeader> stack_headers(const WeightLayout& layout, const std::string& weight,
                                        const std::vector<std::int64_t>& shape);

/// Quantizes stack `index` of `tensors` by `spec`, an expert at a time where tiles have several
/// rows. Stochastic rounding draws from seed + index, and the number of the expert. The bytes are
/// those of stack_headers. Precondition: refuse_stack is empty.
QuantizedBytes quantize_stack(Backend& backend, const ModelTensors& tensors, std::size_t index,
                              const QuantSpec& spec, const WeightLayout& layout,
                              std::uint64_t seed);

}  // namespace fp8lab
