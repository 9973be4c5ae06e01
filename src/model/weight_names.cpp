#include "src/model/weight_names.hpp"

#include <array>
#include <string_view>
#include <utility>

namespace fp8lab {
namespace {

struct Fusion {
  std::string fused;  ///< as it appears in the parameter's name
  std::vector<std::pair<std::string, std::int64_t>> parts;  ///< name and rows of each
};

std::vector<Fusion> fusions(const ModelConfig& model) {
  const std::int64_t q = model.num_attention_heads * model.head_dim;
  const std::int64_t kv = model.num_key_value_heads * model.head_dim;
  return {{"qkv_proj", {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}}},
          {"gate_up_proj",
           {{"gate_proj", model.intermediate_size}, {"up_proj", model.intermediate_size}}}};
}

}  // namespace

std::int64_t WeightPart::size() const {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  return size;
}

std::vector<WeightPart> weight_parts(const ParameterShape& parameter, const ModelConfig& model) {
  const std::string& name = parameter.name;
  const bool matrix = parameter.weight_decay;
  const auto shape = [&](std::int64_t count) {
    return matrix ? std::vector<std::int64_t>{count, parameter.cols}
                  : std::vector<std::int64_t>{count};
  };
  for (const Fusion& fusion : fusions(model)) {
    const std::size_t at = name.find(fusion.fused);
    if (at == std::string::npos) continue;
    std::vector<WeightPart> parts;
    std::int64_t first = 0;
    for (const auto& [part, count] : fusion.parts) {
      std::string part_name = name;
      part_name.replace(at, fusion.fused.size(), part);
      parts.push_back({std::move(part_name), shape(count), first});
      first += parts.back().size();
    }
    return parts;
  }
  return {{name, shape(matrix ? parameter.rows : parameter.cols), 0}};
}

std::optional<std::string> layer_of_weight(const std::string& tensor) {
  constexpr std::array<std::pair<const char*, const char*>, 7> kLayers = {
      {{"self_attn.q_proj", "attention.qkv"},
       {"self_attn.k_proj", "attention.qkv"},
       {"self_attn.v_proj", "attention.qkv"},
       {"self_attn.o_proj", "attention.o"},
       {"mlp.gate_proj", "mlp.gate_up"},
       {"mlp.up_proj", "mlp.gate_up"},
       {"mlp.down_proj", "mlp.down"}}};
  constexpr std::string_view kPrefix = "model.layers.", kSuffix = ".weight";
  if (tensor == "lm_head.weight") return "lm_head";
  if (!tensor.starts_with(kPrefix) || !tensor.ends_with(kSuffix)) return std::nullopt;
  const std::size_t dot = tensor.find('.', kPrefix.size());
  if (dot + kSuffix.size() > tensor.size()) return std::nullopt;
  const std::string index = tensor.substr(kPrefix.size(), dot - kPrefix.size());
  const std::string module = tensor.substr(dot + 1, tensor.size() - kSuffix.size() - dot - 1);
  const bool number = !index.empty() && index.size() < 6 &&
                      index.find_first_not_of("0123456789") == std::string::npos;
  for (const auto& [name, layer] : kLayers) {
    if (number && module == name) return "layers." + index + "." + layer;
  }
  return std::nullopt;
}

}  // namespace fp8lab
