#include "src/model_files/packed_experts.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "emulation/numerics/codec.hpp"

namespace fp8lab {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";

bool is_integer(StoredType type) {
  return type == StoredType::u8 || type == StoredType::i8 || type == StoredType::i32 ||
         type == StoredType::u32;
}

std::string without(const std::string& name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

ModelFinding error_of(const char* kind, const std::string& tensor, std::string text) {
  return {Severity::error, kind, tensor, {}, 1, std::move(text)};
}

/// Returns true for the names of experts whose blocks loaders read (gpt-oss).
bool is_of_experts(const std::string& name) {
  return name.ends_with("experts.gate_up_proj") || name.ends_with("experts.down_proj");
}

/// Names under which GPTQ, AWQ, bitsandbytes and MXFP4 keep integer codes.
bool holds_unexplained_codes(const ModelFolder& folder, const StoredTensor& tensor) {
  const std::string& name = tensor.name;
  if (!is_integer(tensor.type) || tensor.shape.size() < 2) return false;
  if (name.ends_with(kBlocks) || name.ends_with(kScales)) return tensor.type == StoredType::u8;
  if (name.ends_with(".qweight")) return true;
  return name.ends_with(".weight") && folder.find(name + "_scale") == nullptr &&
         folder.find(name + "_scale_inv") == nullptr;  // reported as scales of no weight
}

void report_unexplained(const ModelFolder& folder, const StoredTensor& tensor,
                        std::vector<ModelFinding>& findings) {
  const QuantizationClaim& claim = folder.claim;
  const std::string why = claim.is_there
                              ? fmt::format("quantization_config, '{}', has no such", claim.method)
                              : "no quantization_config says of what method";
  findings.push_back(
      error_of(claim.is_there ? "config_method" : "config_unquantized", tensor.name,
               fmt::format("is {}: codes, but {}: the loader finds no weight there, or takes the "
                           "bytes for values",
                           shape_text(tensor), why)));
}

}  // namespace

std::vector<std::int64_t> PackedExperts::shape() const {
  return {blocks->shape[0], blocks->shape[2] * 32, blocks->shape[1]};
}

bool claims_packed_experts(const ModelFolder& folder) { return folder.claim.method == "mxfp4"; }

std::vector<PackedExperts> find_packed_experts(const ModelFolder& folder,
                                               std::vector<ModelFinding>& findings) {
  std::vector<PackedExperts> all;
  const bool is_claimed = claims_packed_experts(folder);
  const bool is_of_another_method =
      folder.claim.is_there && !folder.claim.dialect && !is_claimed;  // whose names are not known
  for (const StoredTensor* tensor : folder.plain) {
    const std::string& name = tensor->name;
    if (is_claimed && name.ends_with(kBlocks)) {
      const std::string base = without(name, kBlocks);
      const PackedExperts found{base, tensor, folder.find(base + std::string(kScales))};
      const auto& shape = tensor->shape;
      if (!is_of_experts(base)) {
        findings.push_back(error_of(
            "config_method", name,
            fmt::format("is {}: blocks of no experts; with quant_method 'mxfp4' loaders read "
                        "blocks of 'experts.gate_up_proj' and 'experts.down_proj' alone, and find "
                        "no '{}'",
                        shape_text(*tensor), base)));
        continue;
      }
      if (found.scales == nullptr) {
        findings.push_back(error_of("scale_missing", name,
                                    fmt::format("is {} without scales: there is no '{}{}'",
                                                shape_text(*tensor), base, kScales)));
        continue;
      }
      const bool fits =
          tensor->type == StoredType::u8 && shape.size() == 4 && shape[3] == 16 &&
          found.scales->type == StoredType::u8 &&
          found.scales->shape == std::vector<std::int64_t>(shape.begin(), shape.end() - 1);
      if (!fits) {
        findings.push_back(
            error_of("grid", name,
                     fmt::format("is {} beside {}; accepted: U8 (experts, N, K / 32, 16) beside U8 "
                                 "(experts, N, K / 32)",
                                 shape_text(*tensor), shape_text(*found.scales))));
        continue;
      }
      if (folder.find(base) != nullptr) {
        findings.push_back(error_of(
            "weight_twice", base,
            fmt::format("is there beside '{}', which are the codes of the same weight: which "
                        "of the two counts depends on the loader",
                        name)));
        continue;
      }
      all.push_back(found);
    } else if (is_claimed && name.ends_with(kScales)) {
      const std::string blocks = without(name, kScales) + std::string(kBlocks);
      if (folder.find(blocks) != nullptr) continue;
      findings.push_back(error_of("scale_orphan", name,
                                  fmt::format("has no codes beside it: there is no '{}'", blocks)));
    } else if (!is_of_another_method && holds_unexplained_codes(folder, *tensor)) {
      report_unexplained(folder, *tensor, findings);
    }
  }
  return all;
}

PackedExpertBytes read_bytes(const PackedExperts& experts) {
  return {read_bytes(*experts.blocks), read_bytes(*experts.scales)};
}

void read_experts(const PackedExperts& experts, const PackedExpertBytes& bytes, std::int64_t first,
                  std::span<float> destination) {
  const std::int64_t rows = experts.blocks->shape[1], k = experts.blocks->shape[2] * 32;
  for (std::size_t i = 0; i < destination.size(); ++i) {
    const std::int64_t at = first + static_cast<std::int64_t>(i), expert = at / (k * rows);
    const std::int64_t row = at % rows, column = at / rows % k;
    const auto element = static_cast<std::size_t>((expert * rows + row) * k + column);
    const auto byte = static_cast<std::uint32_t>(bytes.blocks[element / 2]);
    const float scale =
        numerics::decode(numerics::kE8M0, static_cast<std::uint32_t>(bytes.scales[element / 32]));
    destination[i] =
        scale * numerics::decode(numerics::kE2M1, element % 2 == 0 ? byte & 15u : byte >> 4);
  }
}

}  // namespace fp8lab
