// Quantization on the CPU: the definition that every backend follows bit for bit.
#pragma once

#include "emulation/api/backend.hpp"

namespace fp8lab::cpu {

/// Quantizes `source` (R, C), bf16 or f32, into `operand`: rows = R, k = C, or with `transpose`
/// rows = C, k = R. Codes and scales have the shapes of QuantizedOperand, any row stride.
///
/// Scales (recipes.md section 0.3). current: each tile's own amax through numerics::tile_scale.
/// The amax is a maximum of magnitude bits, so infinity and NaN exceed every number and reach
/// tile_scale, which gives such a tile scale 1 (e8m0: NaN; see there); two-level scales are
/// numerics::nv_tile_scale with the tensor's amax, and FourOverSix takes the enlarged one where its
/// four_over_six_error is smaller. delayed: the scale in force
/// in `state` (DelayedState; zeros stand for 1), and state[kAmax] is raised to the amax of the
/// tensor. static: spec.static_scale with the multiplier RN(1/scale).
///
/// Codes: numerics::encode(format, float_bits(scaled_value(scale, x)), rounding, overflow, bits),
/// where scaled_value divides only under an fp32 scale with ScaleArithmetic::dec_div. The random
/// bits of stochastic rounding are numerics::random_bits(key.., index) with the element's logical
/// index in the source, r * C + c. An all-zero tile has zero codes with the signs of its zeros.
///
/// With a transform along K or a clamp, the tensor above is `transformed` of the source, in FP32;
/// the logical index of an element is that of its place in it. A clamp writes operand.clamp_bounds.
///
/// Formats with codebooks and expansions: see quantize_codebooks, and dequantize decodes by them.
///
/// A format of more than 8 bits takes no scale; its values are rounded once and stored as bf16
/// where bf16 holds them all, else as f32. Equal types (bf16 to bf16, f32 to f32) keep their bits,
/// otherwise a NaN becomes the canonical one.
///
/// Errors: shapes or types that do not fit, an empty tensor, a scale on a wide format, an
/// unsigned element format, a delayed tile
/// that is not the tensor or comes without its state, a static scale that is not positive, a
/// transform that does not fit K or lacks its factors or memory for its bounds.
void quantize(const TensorView& source, bool transpose, const RandomKey& key,
              const TensorView& state, QuantizedOperand& operand);

/// destination (rows, k), or (k, rows) when `transpose`, bf16 or f32, = the FP32 product
/// scale * decode(code), rounded to nearest even to the destination's type; NaN canonical. Without
/// a scale the decoded or stored value itself. A transform along K is undone in FP32
/// (undo_transform) before the rounding.
void dequantize(const QuantizedOperand& operand, bool transpose, const TensorView& destination);

/// End of a step (recipes.md section 0.4). A running amax of zero means that the tensor was not
/// seen: nothing changes. Otherwise the history moves by one, the running amax becomes its newest
/// entry and is cleared, and the largest entry (AmaxAlgorithm::max) or the newest (most_recent), if
/// finite and positive, gives the next scale by tile_scale with the rule's margin; else the scale
/// stays. A NaN or infinity thus holds the scale until it leaves the history.
/// AmaxAlgorithm::window (Intel): a step whose amax is zero counts as well, the scale is taken from
/// the largest entry once every history_length steps, and a window of zeros gives the rule's scale
/// of a zero tile.
void update_delayed_scale(const QuantSpec& spec, const TensorView& state);

/// Empty when this backend can quantize by `spec`, else the reason.
Support supports_quantization(const QuantSpec& spec);

}  // namespace fp8lab::cpu
