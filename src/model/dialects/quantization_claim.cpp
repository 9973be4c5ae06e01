#include "src/model/dialects/quantization_claim.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <regex>

namespace fp8lab {
namespace {

using nlohmann::json;

constexpr std::int64_t kLargestClaim = 1 << 20;

const json& field(const json& object, const char* key) {
  static const json kNull;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNull;
}

std::string text(const json& object, const char* key) {
  const json& value = field(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::vector<std::string> texts(const json& value) {
  std::vector<std::string> all;
  if (!value.is_array()) return all;
  for (const json& one : value) {
    if (one.is_string()) all.push_back(one.get<std::string>());
  }
  return all;
}

std::optional<StoredScaleTile> block(const json& value) {
  const auto is_size = [](const json& one) {
    return one.is_number_integer() && one.get<std::int64_t>() > 0 &&
           one.get<std::int64_t>() <= kLargestClaim;
  };
  if (value.is_array() && value.size() == 2 && is_size(value[0]) && is_size(value[1])) {
    return StoredScaleTile{value[0].get<std::int64_t>(), value[1].get<std::int64_t>()};
  }
  return std::nullopt;
}

/// A size that is a number above 0, or nothing.
std::optional<std::int64_t> size(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.get<std::int64_t>();
  return number > 0 && number <= kLargestClaim ? std::optional(number) : std::nullopt;
}

void read_fine_grained(const json& config, QuantizationClaim& claim) {
  GroupClaim group{.targets = {"Linear"}, .bits = 8};
  const json& size_of_block = field(config, "weight_block_size");
  group.tile = block(size_of_block);
  if (size_of_block.is_null()) {
    group.tile = StoredScaleTile{0, 0};
  } else if (!group.tile) {
    claim.problems.push_back(fmt::format("weight_block_size is {}, which is no pair of sizes",
                                         size_of_block.dump().substr(0, 80)));
  }
  const std::string scheme = text(config, "activation_scheme");
  group.has_static_inputs = scheme == "static";
  group.has_dynamic_inputs = scheme == "dynamic";
  claim.groups.push_back(group);
  claim.format = text(config, "fmt");
  claim.says_powers_of_two = text(config, "scale_fmt") == "ue8m0";
}

std::optional<StoredScaleTile> tile_of_strategy(const json& weights, const std::string& place,
                                                QuantizationClaim& claim) {
  const std::string strategy = text(weights, "strategy");
  const std::optional<std::int64_t> group = size(field(weights, "group_size"));
  if (strategy == "tensor") return StoredScaleTile{0, 0};
  if (strategy == "channel") return StoredScaleTile{1, 0};
  if (strategy == "group" || strategy == "tensor_group") {
    if (group) return StoredScaleTile{1, *group};
    claim.problems.push_back(fmt::format("{}: strategy {} has no group_size", place, strategy));
  } else if (strategy == "block") {
    if (const std::optional<StoredScaleTile> tile = block(field(weights, "block_structure"))) {
      return tile;
    }
    claim.problems.push_back(
        fmt::format("{}: strategy block has no block_structure of two sizes", place));
  } else if (!strategy.empty()) {
    claim.problems.push_back(fmt::format("{}: strategy '{}' is unknown", place, strategy));
  } else if (group) {
    return StoredScaleTile{1, *group};
  }
  return std::nullopt;
}

void read_groups(const json& config, QuantizationClaim& claim) {
  const json& groups = field(config, "config_groups");
  if (!groups.is_object() || groups.empty()) {
    claim.problems.push_back("config_groups is missing, so that no weight is described");
    return;
  }
  for (const auto& [name, table] : groups.items()) {
    const std::string place = "config_groups." + name.substr(0, 80);
    GroupClaim group;
    group.targets = texts(field(table, "targets"));
    const json& weights = field(table, "weights");
    const json& bits = field(weights, "num_bits");
    if (bits.is_number_integer()) group.bits = bits.get<int>();
    if (const std::string type = text(weights, "type"); !type.empty()) group.type = type;
    group.tile = tile_of_strategy(weights, place, claim);
    const json& inputs = field(table, "input_activations");
    const json& dynamic = field(inputs, "dynamic");
    group.has_static_inputs = inputs.is_object() && dynamic.is_boolean() && !dynamic.get<bool>();
    group.has_dynamic_inputs = dynamic.is_boolean() && dynamic.get<bool>();
    claim.groups.push_back(std::move(group));
  }
}

/// The words of ModelOpt for what a group holds.
void apply_algorithm(const std::string& algorithm, const json& config, GroupClaim& group,
                     QuantizationClaim& claim) {
  const std::int64_t size_of_group = size(field(config, "group_size")).value_or(0);
  const bool is_four_bits = algorithm == "NVFP4" || algorithm == "W4A16_NVFP4";
  group.bits = is_four_bits ? 4 : 8;
  if (is_four_bits) {
    group.tile = StoredScaleTile{1, size_of_group == 0 ? 16 : size_of_group};
  } else if (algorithm == "FP8") {
    group.tile = StoredScaleTile{0, 0};
  } else if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
    group.tile = StoredScaleTile{1, 0};
  } else if (algorithm == "FP8_PB_WO") {
    group.tile = StoredScaleTile{size_of_group == 0 ? 128 : size_of_group,
                                 size_of_group == 0 ? 128 : size_of_group};
  } else if (algorithm == "MXFP8") {
    group.tile = StoredScaleTile{1, 32};
  } else {
    group.bits.reset();
    if (algorithm != "MIXED_PRECISION") {
      claim.problems.push_back(fmt::format("quant_algo '{}' is not known here", algorithm));
    }
  }
  group.has_static_inputs = algorithm == "FP8" || algorithm == "NVFP4";
}

void read_modelopt(const json& config, QuantizationClaim& claim) {
  const std::string algorithm = text(config, "quant_algo");
  const json& layers = field(config, "quantized_layers");
  if (layers.is_object()) {
    for (const auto& [module, table] : layers.items()) {
      GroupClaim group{.targets = {module}};
      apply_algorithm(text(table, "quant_algo"), table, group, claim);
      claim.groups.push_back(group);
    }
    return;
  }
  GroupClaim group{.targets = {"Linear"}};
  if (algorithm.empty()) {
    claim.problems.push_back("quant_algo is missing, so that no weight is described");
  } else {
    apply_algorithm(algorithm, config, group, claim);
  }
  claim.groups.push_back(group);
}

/// The keys of a quantization_config that are read, or that say nothing about the weights.
constexpr std::array kKnownKeys = {
    "quant_method",
    "fmt",
    "weight_block_size",
    "activation_scheme",
    "scale_fmt",
    "modules_to_not_convert",
    "ignored_layers",
    "ignore",
    "exclude_modules",
    "config_groups",
    "format",
    "kv_cache_scheme",
    "quantization_status",
    "global_compression_ratio",
    "sparsity_config",
    "transform_config",
    "version",
    "quant_algo",
    "kv_cache_quant_algo",
    "group_size",
    "has_zero_point",
    "pre_quant_scale",
    "producer",
    "quantized_layers",
    "quant_type",
    "include_input_output_embeddings",
    "untie_embedding_weights",
    "dequantize",
};

bool matches_wildcard(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    return matches_wildcard(pattern.substr(1), name) ||
           (!name.empty() && matches_wildcard(pattern, name.substr(1)));
  }
  return !name.empty() && pattern[0] == name[0] &&
         matches_wildcard(pattern.substr(1), name.substr(1));
}

bool matches_expression(const std::string& expression, const std::string& module) {
  try {
    std::smatch found;
    return std::regex_search(module, found, std::regex(expression),
                             std::regex_constants::match_continuous);
  } catch (const std::regex_error&) {
    return false;
  }
}

}  // namespace

bool names_module(const std::string& pattern, const std::string& module) {
  if (pattern.starts_with("re:")) return matches_expression(pattern.substr(3), module);
  if (pattern.find('*') != std::string::npos) return matches_wildcard(pattern, module);
  if (pattern.empty()) return false;
  return ("." + module + ".").find("." + pattern + ".") != std::string::npos;
}

bool QuantizationClaim::ignores(const std::string& module) const {
  return std::any_of(ignored.begin(), ignored.end(),
                     [&](const std::string& one) { return names_module(one, module); });
}

bool QuantizationClaim::leaves_out(const std::string& module) const {
  if (groups.empty()) return false;
  const std::string leaf = module.substr(module.rfind('.') + 1);
  constexpr std::array kEmbeddings = {"embed_tokens", "wte", "wpe"};
  const bool is_embedding =
      std::find(kEmbeddings.begin(), kEmbeddings.end(), leaf) != kEmbeddings.end();
  const bool is_norm = leaf.find("norm") != std::string::npos || leaf.starts_with("ln_");
  const auto covers = [&](const std::string& target) {
    if (target == "Linear") return !is_embedding && !is_norm;
    return (target == "Embedding" && is_embedding) || names_module(target, module);
  };
  return std::none_of(groups.begin(), groups.end(), [&](const GroupClaim& group) {
    return group.targets.empty() || std::any_of(group.targets.begin(), group.targets.end(), covers);
  });
}

const GroupClaim* QuantizationClaim::group_of(const std::string& module) const {
  const GroupClaim* usual = nullptr;
  for (const GroupClaim& group : groups) {
    for (const std::string& target : group.targets) {
      if (target == "Linear") {
        usual = usual == nullptr ? &group : usual;
      } else if (names_module(target, module)) {
        return &group;
      }
    }
    if (group.targets.empty() && usual == nullptr) usual = &group;
  }
  return usual;
}

std::vector<std::string> unread_settings(const json& table) {
  std::vector<std::string> found;
  const json& rotations = field(table, "transform_config");
  if (!rotations.is_null() && !rotations.empty()) {
    found.push_back(
        "transform_config: the weights are rotated, and so are their inputs at run time");
  }
  for (const char* key : {"pre_quant_scale", "has_zero_point"}) {
    if (field(table, key) == json(true)) found.push_back(fmt::format("{} is true", key));
  }
  const json& groups = field(table, "config_groups");
  if (!groups.is_object()) return found;
  for (const auto& [name, group] : groups.items()) {
    if (field(field(group, "weights"), "symmetric") == json(false)) {
      found.push_back(
          fmt::format("config_groups.{}.weights.symmetric is false", name.substr(0, 80)));
    }
  }
  return found;
}

QuantizationClaim read_claim(const json& config) {
  QuantizationClaim claim;
  const json& table = field(config, "quantization_config").is_null()
                          ? field(config, "compression_config")
                          : field(config, "quantization_config");
  if (table.is_null()) return claim;
  claim.is_there = true;
  if (!table.is_object()) {
    claim.problems.push_back("quantization_config is no object");
    return claim;
  }
  claim.method = text(table, "quant_method");
  claim.unread = unread_settings(table);
  for (const auto& [key, value] : table.items()) {
    const bool is_known = std::find(kKnownKeys.begin(), kKnownKeys.end(), key) != kKnownKeys.end();
    if (!is_known && !value.is_null()) claim.unknown.push_back(key.substr(0, 80));
  }
  for (const char* key :
       {"modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"}) {
    for (std::string& one : texts(field(table, key))) claim.ignored.push_back(std::move(one));
  }
  if (claim.method == "fp8") {
    claim.dialect = Dialect::fine_grained;
    read_fine_grained(table, claim);
  } else if (claim.method == "compressed-tensors") {
    claim.dialect = Dialect::compressed_tensors;
    read_groups(table, claim);
  } else if (claim.method == "modelopt" || claim.method == "modelopt_fp4") {
    claim.dialect = Dialect::modelopt;
    read_modelopt(table, claim);
  } else if (claim.method == "torchao") {
    claim.dialect = Dialect::torchao;
  } else if (claim.method.empty()) {
    claim.problems.push_back("quantization_config names no quant_method");
  }
  return claim;
}

}  // namespace fp8lab
