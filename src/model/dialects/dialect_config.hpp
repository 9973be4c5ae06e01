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

/// A quantized weight as torchao describes it: a matrix, or a stack of them, and its tile, which
/// may be that of a column where the layout's is that of a row.
struct QuantizedShape {
  std::vector<std::int64_t> shape;
  StoredScaleTile tile;
};
/// By names of weights.
using QuantizedShapes = std::map<std::string, QuantizedShape>;

/// Returns the quantization_config of config.json for weights in `layout`. `kept` are the modules
/// that stay unquantized. torchao wants the names of those of `shapes` that are stacks: parameters
/// that are no weights of a module.
nlohmann::ordered_json quantization_config(const WeightLayout& layout, InputQuantization inputs,
                                           const std::vector<std::string>& kept,
                                           const QuantizedShapes& shapes = {});

/// Returns ModelOpt's second statement of the same, the content of hf_quant_config.json.
nlohmann::ordered_json modelopt_file(const WeightLayout& layout,
                                     const std::vector<std::string>& kept);

/// Returns the metadata by which torchao finds tensors in safetensors files: for each weight of
/// `shapes` its class and fields, for every other name of `plain`
/// that it is one, and the list of all names. `dtype` is the type of dequantized values,
/// "bfloat16".
std::map<std::string, std::string> torchao_metadata(const WeightLayout& layout,
                                                    const QuantizedShapes& shapes,
                                                    const std::vector<std::string>& plain,
                                                    const std::string& dtype);

}  // namespace fp8lab
