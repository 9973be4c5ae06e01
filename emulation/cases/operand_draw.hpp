// Draws operands for random cases: their quantizers, codes, scales and states.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/cases/case_draw.hpp"
#include "emulation/spec/current_scaling.hpp"

namespace fp8lab {

/// Returns quantized(format, tile) after the transform of this name.
QuantSpec quantized_behind(const char* transform, const numerics::FormatSpec& format,
                           TileShape tile);

/// Returns quantizers with every tile, narrow format, scale rounding and arithmetic,
/// rounding, and source of scales.
std::vector<QuantSpec> every_quantizer();

/// Draws one of the quantizers whose operands are transformed or measured.
QuantSpec draw_quantizer(CaseDraw& draw);

/// Draws a number of elements of K, or of rows, that `transform` fits, about `wanted`.
std::int64_t draw_length(CaseDraw& draw, const Transform& transform, std::int64_t wanted);

/// Returns an operand with codes and scales at t[first] and t[first + 1]; without
/// scales if `spec` has none.
QuantizedOperand operand_at(const QuantSpec& spec, std::int64_t rows, std::int64_t k,
                            const Views& t, std::size_t first);

/// Returns a tensor for the codes of an operand.
HostTensor codes_of(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k);

/// Returns a tensor for the scales of an operand; one element if `spec` has none.
HostTensor scales_of(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k);

/// Draws the scales of an operand, including extreme ones.
HostTensor draw_scales(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k);

/// Returns the state before the first step of delayed scaling; one element if `spec` has none.
HostTensor state_of(CaseDraw& draw, const QuantSpec& spec);

/// Returns the view of the state if `spec` has one, else an empty view.
inline TensorView state_for(const QuantSpec& spec, const TensorView& state) {
  return spec.scale_source == ScaleSource::delayed ? state : TensorView{};
}

/// Returns a tensor for the bounds of a clamp.
HostTensor bounds_of(CaseDraw& draw);

/// Returns a tensor for an OperandStatistics.
HostTensor record_of(CaseDraw& draw);

/// Draws the cases of ops::Product with an estimator.
void draw_estimated_products(CaseDraw& draw);

/// Returns " transposed" or an empty text, for messages.
inline const char* orientation_name(bool transpose) { return transpose ? " transposed" : ""; }

}  // namespace fp8lab
