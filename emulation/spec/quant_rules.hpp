// Rules for which quantizers can be computed, shared by recipes and every backend.
#pragma once

#include <optional>
#include <string>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Returns why a quantizer is impossible, with the key of a slot table in a recipe ("scale_source",
/// "tile", ...) and no place. Returns empty if matrices can be quantized by `spec`:
/// - elements have a sign, and elements of more than 8 bits have no scale;
/// - a delayed or static scale is one number for the tensor;
/// - formats with codebooks and the transform expand have current scales of tiles and no scale
///   rule, and expand has the format e4m3fn;
/// - two-level scales are current scales of tiles smaller than the tensor, and only they choose
///   between 6 and 4;
/// - a standard deviation is for current scales of tiles of at most 1024 elements;
/// - a factor is for powers of two held in FP32;
/// - a history has a step, and a static scale is finite and above 0.
std::optional<ErrorFields> refuse_quantizer(const QuantSpec& spec);

}  // namespace fp8lab
