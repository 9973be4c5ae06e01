// Rules for which quantizers can be computed, shared by recipes and every backend.
#pragma once

#include <optional>
#include <string>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

/// Returns true for formats that QuantSpec::via can name: FP32, and floating ones of more than 8
/// bits with a sign, subnormals and infinity.
bool is_via_format(const numerics::FormatSpec& format);

/// Returns why a quantizer is impossible, with the key of a slot table in a recipe ("scale_source",
/// "tile", ...) and no place. Returns empty if matrices can be quantized by `spec`:
/// - elements have a sign, and elements of more than 8 bits have no scale;
/// - a delayed or static scale is one number for the tensor;
/// - formats with codebooks and the transform expand have current scales of tiles and no scale
///   rule, and expand has the format e4m3fn;
/// - two-level scales are current scales of tiles smaller than the tensor, and only they choose
///   between 6 and 4; a factor of each row needs tiles of one row;
/// - a number of random bits is that of stochastic rounding to a floating or integer grid;
/// - values are rounded to another format first only if they are rounded, and to no codebook;
/// - a standard deviation is for current scales of tiles of at most 1024 elements;
/// - a factor is for powers of two held in FP32;
/// - a history has a step, and a static scale is finite and above 0.
std::optional<ErrorFields> refuse_quantizer(const QuantSpec& spec);

}  // namespace fp8lab
