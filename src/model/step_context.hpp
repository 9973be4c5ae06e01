// The step and the micro-batch that a pass belongs to.
#pragma once

#include <cstdint>

namespace fp8lab {

/// Identifies a micro-batch of a step for random keys, and says whether operands are measured.
struct StepContext {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;                       ///< optimizer step of the run
  const std::uint32_t* step_counter = nullptr;  ///< RandomKey::step_counter
  std::uint32_t micro_batch = 0;
  bool adds_to_gradients = false;  ///< weight gradients are added to instead of overwritten
  bool log_statistics = false;
  bool measures_chunks = false;  ///< log_statistics then covers all chunks of the loss
};

}  // namespace fp8lab
