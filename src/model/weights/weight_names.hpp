// How the weights of a model are called in Hugging Face files, and how they lie there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/architecture/declaration.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// A tensor of a file as a part of one of our parameters: its elements lie at
/// [first, first + size) of the parameter's, both row-major.
struct WeightPart {
  std::string name;
  std::vector<std::int64_t> shape;  ///< matrices have two extents, vectors one
  std::int64_t first = 0;
  bool is_zero_centered = false;  ///< the file's values are the parameter's less 1

  std::int64_t size() const;
};

/// The tensors that make up a parameter, in order. A model that no family's names fit keeps ours.
std::vector<WeightPart> weight_parts(const ParameterDeclaration& parameter,
                                     const ModelConfig& model);

/// The linear layer whose weight a tensor is, as recipes name it: "layers.3.attention.qkv" for
/// "model.layers.3.self_attn.k_proj.weight". Nothing for other tensors, the embedding among them.
std::optional<std::string> layer_of_weight(const std::string& tensor);

/// True for the weight of a linear layer that files hold as (in, out).
bool is_stored_transposed(const std::string& tensor);

/// The name of a tensor in today's files of its family: "transformer.h.0.ln_1.weight" for
/// "h.0.ln_1.weight".
std::string present_name(const std::string& tensor);

/// The (cols, rows) transpose of a row-major (rows, cols) matrix.
std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols);

}  // namespace fp8lab
