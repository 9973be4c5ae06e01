// Heads that are stated twice, and blocks that lie over the rows of two fused layers.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/model_files/model_doctor.hpp"

namespace fp8lab {
namespace {

using nlohmann::json;

const StoredTensor* first_of(const ModelFolder& folder, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const StoredTensor* const found = folder.find(name)) return found;
  }
  return nullptr;
}

bool have_equal_bytes(const StoredTensor& left, const StoredTensor& right) {
  if (left.type != right.type || left.shape != right.shape) return false;
  TensorBytes a, b;
  for (std::uint64_t first = 0; first < left.bytes(); first += kElementsAtOnce) {
    const std::uint64_t size = std::min<std::uint64_t>(kElementsAtOnce, left.bytes() - first);
    a.resize(size);
    b.resize(size);
    left.file->read(left.offset + first, a);
    right.file->read(right.offset + first, b);
    if (a != b) return false;
  }
  return true;
}

/// Rows at which one fused layer ends and the next begins; empty if the configuration does not say.
std::vector<std::int64_t> boundaries(const std::string& module, std::int64_t rows,
                                     const json& config) {
  const auto ends = [&](const char* word) { return module.ends_with(word); };
  if (ends("gate_up_proj") && rows % 2 == 0) return {rows / 2};
  if (!ends("qkv_proj") && !ends("Wqkv")) return {};
  const std::int64_t heads = config_number(config, "num_attention_heads", 0);
  if (heads <= 0) return {};
  const std::int64_t kv = config_number(config, "num_key_value_heads", heads);
  const std::int64_t size =
      config_number(config, "head_dim", config_number(config, "hidden_size", 0) / heads);
  if (size <= 0 || kv <= 0 || (heads + 2 * kv) * size != rows) return {};
  return {heads * size, (heads + kv) * size};
}

void check_fused_rows(const ModelFolder& folder, const StoredWeight& weight,
                      std::vector<ModelFinding>& findings) {
  const std::int64_t height = weight.layout.tile.rows;
  if (height <= 1 || !is_readable(weight)) return;
  const std::vector<std::int64_t> shape = weight.shape();
  const std::int64_t rows = shape[shape.size() - 2];
  const std::string module = module_of_tensor(weight.name);
  for (const std::int64_t row : boundaries(module, rows, folder.config)) {
    if (row % height == 0) continue;
    findings.push_back(
        {Severity::warning,
         "fused_rows",
         weight.scales->name,
         {row / height, 0},
         1,
         fmt::format("block ({}, 0) holds rows of two fused layers, which meet at row {}: split, "
                     "the parts have no scales of their own, and engines that shard them refuse",
                     row / height, row)});
  }
  const bool is_part = module.ends_with("q_proj") || module.ends_with("k_proj") ||
                       module.ends_with("gate_proj") || module.ends_with("v_proj") ||
                       module.ends_with("up_proj");
  if (!is_part || module.ends_with("gate_up_proj") || rows % height == 0) return;
  findings.push_back(
      {Severity::note,
       "fused_rows",
       weight.scales->name,
       {rows / height, 0},
       1,
       fmt::format("{} rows are no multiple of {}: engines that fuse this layer with its "
                   "neighbours (q, k, v; gate, up) refuse it or move its blocks",
                   rows, height)});
}

void check_tied_head(const ModelFolder& folder, std::vector<ModelFinding>& findings) {
  const json& tied = config_field(folder.config, "tie_word_embeddings");
  const StoredTensor* const head = first_of(folder, {"lm_head.weight", "output.weight"});
  const StoredTensor* const embedding = first_of(
      folder,
      {"model.embed_tokens.weight", "transformer.wte.weight", "embed_tokens.weight", "wte.weight"});
  const StoredTensor* const other_head =
      first_of(folder, {"lm_head.weight_packed", "lm_head._weight_qdata"});
  if (!tied.is_boolean() || embedding == nullptr) return;
  const auto add = [&](Severity severity, const std::string& tensor, std::string text) {
    findings.push_back({severity, "tied_head", tensor, {}, 1, std::move(text)});
  };
  if (!tied.get<bool>() && head == nullptr && other_head == nullptr) {
    const bool is_causal =
        config_field(folder.config, "architectures").dump().find("CausalLM") != std::string::npos;
    if (!is_causal) return;
    add(Severity::error, "lm_head.weight",
        "is not there, but tie_word_embeddings is false: the head keeps its random values");
  } else if (tied.get<bool>() && (head != nullptr || other_head != nullptr)) {
    const StoredTensor& own = head != nullptr ? *head : *other_head;
    if (head != nullptr && have_equal_bytes(*head, *embedding)) {
      add(Severity::note, own.name,
          fmt::format("equals '{}', to which tie_word_embeddings ties it", embedding->name));
      return;
    }
    add(Severity::error, own.name,
        fmt::format("differs from '{}', but tie_word_embeddings ties the two: loaders drop one of "
                    "them, and the logits are another model's",
                    embedding->name));
  }
}

}  // namespace

void check_structure(const ModelFolder& folder, std::vector<ModelFinding>& findings) {
  check_tied_head(folder, findings);
  for (const StoredWeight& weight : folder.weights) check_fused_rows(folder, weight, findings);
}

}  // namespace fp8lab
