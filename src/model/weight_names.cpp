#include "src/model/weight_names.hpp"

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

std::vector<WeightPart> weight_parts(const std::string& name, std::int64_t rows, std::int64_t cols,
                                     const ModelConfig& model) {
  const bool vector = name.ends_with(".bias") || name.ends_with("norm.weight");
  const auto shape = [&](std::int64_t count) {
    return vector ? std::vector<std::int64_t>{count} : std::vector<std::int64_t>{count, cols};
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
  return {{name, shape(vector ? rows * cols : rows), 0}};
}

}  // namespace fp8lab
