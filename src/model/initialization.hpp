// Deviations of initial weights.
#pragma once

#include "src/config/config.hpp"

namespace fp8lab {

/// Of the linear layers that write into the residual stream: with scaled_residual_init
/// initializer_range / sqrt(2 num_hidden_layers) (Radford et al. 2019, section 2.3).
double residual_deviation(const ModelConfig& model);

}  // namespace fp8lab
