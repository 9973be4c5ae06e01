// Frequencies of rotary position embeddings, as transformers 5 defines them
// (modeling_rope_utils.py) but in double precision.
#pragma once

#include <vector>

#include "emulation/backend.hpp"
#include "src/config/config.hpp"

namespace fp8lab {

/// Radians that each pair of channels turns with a position, head_dim / 2 of them: theta^(-2i / D),
/// scaled as model.rope_scaling says.
std::vector<double> rope_frequencies(const ModelConfig& model);

/// What cosines and sines are multiplied by.
double rope_attention_factor(const RopeScaling& scaling);

/// Cosines and sines of positions 0, 1, ...: (positions, head_dim / 2) row-major, with that factor.
struct RopeTables {
  std::vector<double> cosine, sine;
};
RopeTables rope_tables(const ModelConfig& model, std::int64_t positions);

/// The same in backend memory, f32: (positions, head_dim / 2) each.
struct RotaryTables {
  TensorView cosine, sine;
};
/// Throws Error where `positions` is beyond the model's longest sequence.
RotaryTables make_rotary_tables(Backend& backend, const ModelConfig& model, std::int64_t positions);

}  // namespace fp8lab
