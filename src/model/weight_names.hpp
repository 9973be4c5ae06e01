// How the weights of a model are called in Hugging Face files: there q, k and v are tensors of
// their own, and gate and up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

/// A tensor of a file as a part of one of our parameters: its elements lie at
/// [first, first + size) of the parameter's, both row-major.
struct WeightPart {
  std::string name;
  std::vector<std::int64_t> shape;  ///< matrices have two extents, norms and biases one
  std::int64_t first = 0;

  std::int64_t size() const;
};

/// The tensors that make up parameter `name` of shape (rows, cols), in order.
std::vector<WeightPart> weight_parts(const std::string& name, std::int64_t rows, std::int64_t cols,
                                     const ModelConfig& model);

}  // namespace fp8lab
