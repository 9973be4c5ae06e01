// Which quantizers can be computed, decided once for recipes and every backend.
#pragma once

#include <optional>
#include <string>

#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Why a quantizer is impossible.
struct QuantRefusal {
  std::string key;     ///< of a slot table in a recipe: "scale_source", "tile", ...
  std::string reason;  ///< what is wrong and what would be accepted
};

/// Nothing when matrices can be quantized by `spec`:
/// - elements have a sign, and those of more than 8 bits no scale;
/// - a delayed or static scale is one number for the tensor;
/// - formats with codebooks and the transform expand take their scales from the current tiles,
///   without a scale rule, and expand fits values to e4m3fn;
/// - two-level scales are those of current tiles smaller than the tensor, and only they choose
///   between 6 and 4;
/// - a standard deviation is that of current tiles of at most 1024 elements;
/// - a factor is that of powers of two held in FP32;
/// - a history has a step, and a static scale is finite and above 0.
std::optional<QuantRefusal> refuse_quantizer(const QuantSpec& spec);

}  // namespace fp8lab
