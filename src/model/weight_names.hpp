// How the weights of a model are called in Hugging Face files: there q, k and v are tensors of
// their own, and gate and up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/model/parameters.hpp"

namespace fp8lab {

/// A tensor of a file as a part of one of our parameters: its elements lie at
/// [first, first + size) of the parameter's, both row-major.
struct WeightPart {
  std::string name;
  std::vector<std::int64_t> shape;  ///< matrices have two extents, norms and biases one
  std::int64_t first = 0;

  std::int64_t size() const;
};

/// The tensors that make up a parameter, in order.
std::vector<WeightPart> weight_parts(const ParameterShape& parameter, const ModelConfig& model);

/// The linear layer whose weight a tensor is, as recipes name it: "layers.3.attention.qkv" for
/// "model.layers.3.self_attn.k_proj.weight". Nothing for other tensors, the embedding among them.
std::optional<std::string> layer_of_weight(const std::string& tensor);

}  // namespace fp8lab
