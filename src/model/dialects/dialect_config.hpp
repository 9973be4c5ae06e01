// The quantization_config that tells a library how the weights of a folder lie in its files.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/model/dialects/weight_layout.hpp"

namespace fp8lab {

/// What an engine is to do with the inputs of quantized layers.
enum class InputQuantization : std::uint8_t {
  none,    ///< weights only
  tensor,  ///< one scale, measured at run time
  token,   ///< a scale for each row, or each group of a row as long as the weights'
};

/// Returns the quantization_config of config.json for weights in `layout`. `kept` are the modules
/// that stay unquantized. `stacks` are quantized parameters of three extents, which are no weights
/// of a module: torchao wants their names.
nlohmann::ordered_json quantization_config(const WeightLayout& layout, InputQuantization inputs,
                                           const std::vector<std::string>& kept,
                                           const std::vector<std::string>& stacks = {});

/// Returns ModelOpt's second statement of the same, the content of hf_quant_config.json.
nlohmann::ordered_json modelopt_file(const WeightLayout& layout,
                                     const std::vector<std::string>& kept);

/// Returns the metadata by which torchao finds tensors in safetensors files: for each weight of
/// `shapes`, a matrix or a stack of them, its class and fields, for every other name of `plain`
/// that it is one, and the list of all names. `dtype` is the type of dequantized values,
/// "bfloat16".
std::map<std::string, std::string> torchao_metadata(
    const WeightLayout& layout, const std::map<std::string, std::vector<std::int64_t>>& shapes,
    const std::vector<std::string>& plain, const std::string& dtype);

}  // namespace fp8lab
