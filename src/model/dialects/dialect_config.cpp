#include "src/model/dialects/dialect_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fp8lab {
namespace {

using nlohmann::ordered_json;

ordered_json fine_grained(const WeightLayout& layout, const std::vector<std::string>& kept) {
  ordered_json config;
  config["quant_method"] = "fp8";
  config["fmt"] = layout.format == numerics::kE4M3 ? "e4m3" : format_name(layout.format);
  config["activation_scheme"] = "dynamic";
  if (layout.tile.is_block()) {
    config["weight_block_size"] = {layout.tile.rows, layout.tile.cols};
  } else {
    config["weight_block_size"] = nullptr;
  }
  // DeepSeek-V3.1's word for scales that are powers of two, activations included.
  if (layout.scales_are_powers || layout.has_e8m0_scales()) config["scale_fmt"] = "ue8m0";
  config["modules_to_not_convert"] = kept;
  return config;
}

const char* strategy_of(const WeightLayout& layout) {
  if (layout.tile.is_tensor()) return "tensor";
  if (layout.tile.is_row()) return "channel";
  if (layout.tile.rows > 1) return "block";
  return layout.has_two_levels() ? "tensor_group" : "group";
}

ordered_json arguments(const WeightLayout& layout, const char* strategy, bool dynamic) {
  ordered_json table = {{"num_bits", layout.format.bits()},
                        {"type", "float"},
                        {"symmetric", true},
                        {"strategy", strategy},
                        {"dynamic", dynamic}};
  if (layout.tile.rows == 1 && layout.tile.cols > 0) table["group_size"] = layout.tile.cols;
  if (layout.has_e8m0_scales()) table["scale_dtype"] = "torch.uint8";
  if (layout.has_two_levels()) table["scale_dtype"] = "torch.float8_e4m3fn";
  return table;
}

ordered_json inputs_of(const WeightLayout& layout, InputQuantization inputs) {
  if (inputs == InputQuantization::none || layout.has_two_levels()) return nullptr;
  if (layout.tile.rows == 1 && layout.tile.cols > 0) return arguments(layout, "group", true);
  ordered_json table = arguments(layout, "token", true);
  if (layout.tile.rows > 1) {
    table["strategy"] = "group";
    table["group_size"] = layout.tile.cols;
  } else if (inputs == InputQuantization::tensor) {
    table["strategy"] = "tensor";
  }
  return table;
}

std::string compressed_format(const WeightLayout& layout, bool has_inputs) {
  if (layout.has_two_levels()) return "nvfp4-pack-quantized";
  if (layout.is_packed()) return "mxfp4-pack-quantized";
  if (layout.has_e8m0_scales()) return "mxfp8-quantized";
  return has_inputs ? "float-quantized" : "naive-quantized";
}

ordered_json compressed_tensors(const WeightLayout& layout, InputQuantization inputs,
                                const std::vector<std::string>& kept) {
  ordered_json group;
  group["targets"] = ordered_json::array({"Linear"});
  group["weights"] = arguments(layout, strategy_of(layout), false);
  if (layout.tile.rows > 1) {
    group["weights"]["block_structure"] = {layout.tile.rows, layout.tile.cols};
  }
  group["input_activations"] = inputs_of(layout, inputs);
  group["output_activations"] = nullptr;
  ordered_json config;
  config["quant_method"] = "compressed-tensors";
  config["format"] = compressed_format(layout, !group["input_activations"].is_null());
  config["quantization_status"] = "compressed";
  config["kv_cache_scheme"] = nullptr;
  config["ignore"] = kept;
  config["config_groups"]["group_0"] = std::move(group);
  return config;
}

const char* modelopt_algorithm(const WeightLayout& layout) {
  if (layout.has_two_levels()) return "W4A16_NVFP4";
  if (layout.has_e8m0_scales()) return "MXFP8";
  if (layout.tile.is_row()) return "FP8_PER_CHANNEL_PER_TOKEN";
  return layout.tile.rows > 1 ? "FP8_PB_WO" : "FP8";
}

ordered_json modelopt(const WeightLayout& layout, const std::vector<std::string>& kept) {
  ordered_json group;
  group["weights"] = {{"dynamic", false}, {"num_bits", layout.format.bits()}, {"type", "float"}};
  if (layout.tile.cols > 0) group["weights"]["group_size"] = layout.tile.cols;
  group["targets"] = ordered_json::array({"Linear"});
  ordered_json config;
  config["quant_method"] = "modelopt";
  config["quant_algo"] = modelopt_algorithm(layout);
  if (layout.tile.cols > 0) config["group_size"] = layout.tile.cols;
  config["kv_cache_scheme"] = nullptr;
  config["ignore"] = kept;
  config["config_groups"]["group_0"] = std::move(group);
  return config;
}

ordered_json torchao_type(const WeightLayout& layout, const StoredScaleTile& tile) {
  ordered_json type;
  if (layout.has_two_levels()) {
    return {{"_type", "NVFP4WeightOnlyConfig"}, {"_version", 1}, {"_data", ordered_json::object()}};
  }
  if (layout.has_e8m0_scales()) {
    return {{"_type", "MXDynamicActivationMXWeightConfig"},
            {"_version", 1},
            {"_data", ordered_json::object()}};
  }
  ordered_json granularity = {{"_type", tile.is_tensor() ? "PerTensor" : "PerRow"},
                              {"_version", 1},
                              {"_data", ordered_json::object()}};
  // The extent that the products sum over.
  if (!tile.is_tensor()) granularity["_data"]["dim"] = tile.is_column() ? 1 : -1;
  type = {{"_type", "Float8WeightOnlyConfig"}, {"_version", 2}};
  type["_data"]["weight_dtype"] = {{"_type", "torch.dtype"}, {"_data", "float8_e4m3fn"}};
  type["_data"]["set_inductor_config"] = true;
  type["_data"]["granularity"] = std::move(granularity);
  return type;
}

ordered_json torchao(const WeightLayout& layout, const std::vector<std::string>& kept,
                     const QuantizedShapes& shapes) {
  ordered_json type = torchao_type(layout, layout.tile);
  ordered_json stacks;
  for (const auto& [name, one] : shapes) {
    if (one.shape.size() == 3) stacks[name] = torchao_type(layout, one.tile);
  }
  if (!stacks.empty()) {
    stacks["_default"] = std::move(type);
    type = {{"_type", "FqnToConfig"}, {"_version", 1}};
    type["_data"]["fqn_to_config"] = std::move(stacks);
  }
  ordered_json config;
  config["quant_method"] = "torchao";
  config["quant_type"]["default"] = std::move(type);
  config["modules_to_not_convert"] = kept;
  config["include_input_output_embeddings"] = false;
  return config;
}

ordered_json torch_dtype(const std::string& name) {
  return {{"_type", "torch.dtype"}, {"_data", name}};
}

ordered_json torchao_tensor(const WeightLayout& layout, const QuantizedShape& weight,
                            const std::string& dtype) {
  ordered_json tensor, data;
  ordered_json names = {"qdata", "scale"};
  const ordered_json automatic = {{"_type", "KernelPreference"}, {"_data", "AUTO"}};
  if (layout.has_two_levels()) {
    tensor["_type"] = "NVFP4Tensor";
    data = {{"is_swizzled_scales", false}, {"use_triton_kernel", false}};
    data["act_quant_kwargs"] = nullptr;
    data["block_size"] = layout.tile.cols;
    data["orig_dtype"] = torch_dtype(dtype);
    names = {"per_tensor_scale", "qdata", "scale"};
  } else if (layout.has_e8m0_scales()) {
    tensor["_type"] = "MXTensor";
    data["elem_dtype"] = torch_dtype("float8_e4m3fn");
    data["block_size"] = layout.tile.cols;
    data["orig_dtype"] = torch_dtype(dtype);
    data["kernel_preference"] = automatic;
    data["act_quant_kwargs"] = nullptr;
    data["is_swizzled_scales"] = false;
  } else {
    tensor["_type"] = "Float8Tensor";
    std::vector<std::int64_t> block = weight.shape;
    if (!weight.tile.is_tensor()) std::fill(block.begin(), block.end(), 1);
    const std::size_t summed = weight.shape.size() - (weight.tile.is_column() ? 2 : 1);
    block[summed] = weight.shape[summed];
    data["block_size"] = block;
    data["mm_config"] = nullptr;
    data["act_quant_kwargs"] = nullptr;
    data["kernel_preference"] = automatic;
    data["dtype"] = torch_dtype(dtype);
  }
  tensor["_data"] = std::move(data);
  tensor["_tensor_data_names"] = std::move(names);
  return tensor;
}

}  // namespace

ordered_json quantization_config(const WeightLayout& layout, InputQuantization inputs,
                                 const std::vector<std::string>& kept,
                                 const QuantizedShapes& shapes) {
  switch (layout.dialect) {
    case Dialect::fine_grained: return fine_grained(layout, kept);
    case Dialect::compressed_tensors: return compressed_tensors(layout, inputs, kept);
    case Dialect::modelopt: return modelopt(layout, kept);
    case Dialect::torchao: break;
  }
  return torchao(layout, kept, shapes);
}

ordered_json modelopt_file(const WeightLayout& layout, const std::vector<std::string>& kept) {
  ordered_json file;
  file["producer"] = {{"name", "modelopt"}, {"version", "0.29.0"}};
  ordered_json& table = file["quantization"];
  table["quant_algo"] = modelopt_algorithm(layout);
  table["kv_cache_quant_algo"] = nullptr;
  if (layout.tile.cols > 0) table["group_size"] = layout.tile.cols;
  table["exclude_modules"] = kept;
  return file;
}

std::map<std::string, std::string> torchao_metadata(const WeightLayout& layout,
                                                    const QuantizedShapes& shapes,
                                                    const std::vector<std::string>& plain,
                                                    const std::string& dtype) {
  std::map<std::string, std::string> metadata;
  ordered_json names = ordered_json::array();
  for (const std::string& name : plain) {
    metadata[name] = R"({"_type": "Tensor"})";
    names.push_back(name);
  }
  for (const auto& [name, weight] : shapes) {
    metadata[name] = torchao_tensor(layout, weight, dtype).dump();
    names.push_back(name);
  }
  metadata["tensor_names"] = names.dump();
  return metadata;
}

}  // namespace fp8lab
