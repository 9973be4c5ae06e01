#include "src/model/initialization.hpp"

#include <cmath>

namespace fp8lab {

double residual_deviation(const ModelConfig& model) {
  if (!model.scaled_residual_init) return model.initializer_range;
  return model.initializer_range / std::sqrt(2.0 * static_cast<double>(model.num_hidden_layers));
}

}  // namespace fp8lab
