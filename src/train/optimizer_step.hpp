// What one optimizer step does besides forward and backward: its scalars and the update.
#pragma once

#include <cstdint>

#include "emulation/backend.hpp"
#include "src/model/parameters.hpp"

namespace fp8lab {

/// Sets the learning rate and 1 / trained_tokens (0 without any), and clears loss and norm.
void begin_step(Backend& backend, const TensorView& scalars, double learning_rate,
                std::int64_t trained_tokens);

/// Gradient norm over all parameters, clipping and AdamW.
void update_parameters(Backend& backend, const Parameters& parameters, const AdamWSpec& spec,
                       const TensorView& scalars);

}  // namespace fp8lab
