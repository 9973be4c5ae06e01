// Quantization into tiles with logarithmic codebooks (LogFMT).
#pragma once

#include "emulation/api/backend.hpp"

namespace fp8lab::cpu {

/// quantize for formats of numerics::Encoding::tile_logarithm, see there: numerics::log_codebook of
/// the largest and the smallest nonzero magnitude of each tile, numerics::encode_log_codebook for
/// each element. scales(i, j) holds the scale of tile (i, j), scales(i, tile_cols + j) its step.
/// The arguments have been checked.
void quantize_logarithm(const TensorView& source, bool transpose, const RandomKey& key,
                        QuantizedOperand& operand);

}  // namespace fp8lab::cpu
