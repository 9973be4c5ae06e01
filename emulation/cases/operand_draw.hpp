// Operands for random cases: how they are quantized, and their codes, scales and states.
#pragma once

#include <cstdint>
#include <vector>

#include "emulation/cases/case_draw.hpp"

namespace fp8lab {

/// Current scaling of `tile`, by the default rule of `scale`.
QuantSpec quantized(const numerics::FormatSpec& format, TileShape tile,
                    numerics::ScaleFormat scale = numerics::ScaleFormat::fp32);
/// The same behind the transform of this name.
QuantSpec quantized_behind(const char* transform, const numerics::FormatSpec& format,
                           TileShape tile);

/// Every tile, narrow format, scale rounding and arithmetic, rounding, and source of scales.
std::vector<QuantSpec> every_quantizer();

/// One of the quantizers whose operands are transformed or measured.
QuantSpec draw_quantizer(CaseDraw& draw);

/// Elements of K, or rows, that `transform` fits, about `wanted`.
std::int64_t draw_length(CaseDraw& draw, const Transform& transform, std::int64_t wanted);

/// `operand` with codes and scales at t[first] and t[first + 1]; no scales when `spec` has none.
QuantizedOperand operand_at(const QuantSpec& spec, std::int64_t rows, std::int64_t k,
                            const Views& t, std::size_t first);

/// Room for the codes of an operand.
HostTensor codes_of(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k);

/// Room for the scales of an operand; one element when `spec` has none.
HostTensor scales_of(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k);

/// Scales of an operand, extreme ones among them.
HostTensor draw_scales(CaseDraw& draw, const QuantSpec& spec, std::int64_t rows, std::int64_t k);

/// The state before the first step of delayed scaling; one element when `spec` has none.
HostTensor state_of(CaseDraw& draw, const QuantSpec& spec);

/// The view of the state where `spec` has one.
inline TensorView state_for(const QuantSpec& spec, const TensorView& state) {
  return spec.scale_source == ScaleSource::delayed ? state : TensorView{};
}

/// Room for the bounds of a clamp.
HostTensor bounds_of(CaseDraw& draw);

/// Room for an OperandStatistics.
HostTensor record_of(CaseDraw& draw);

/// The cases of ops::Product with an estimator.
void draw_estimated_products(CaseDraw& draw);

/// " transposed" or nothing, for messages.
inline const char* orientation_name(bool transpose) { return transpose ? " transposed" : ""; }

}  // namespace fp8lab
