// Quantization of a tensor into one or both of its orientations.
#pragma once

#include "emulation/ops/cost.hpp"
#include "emulation/ops/quantize/operand.hpp"
#include "emulation/ops/tensors.hpp"

namespace fp8lab::ops {

/// Quantizes `source` (R, C), bf16 or f32, into `operand` by operand.spec: rows = R, k = C, or with
/// `transpose` rows = C, k = R. Codes and scales have the shapes of QuantizedOperand, any row
/// stride. The operand describes what the operation makes, its key included: only the memory behind
/// it is written.
///
/// Scales (specification.md). current: each tile's own amax through numerics::tile_scale. The amax
/// is a maximum of magnitude bits, so infinity and NaN exceed every number and reach tile_scale,
/// which gives such a tile scale 1 (e8m0: NaN; see there). Two-level scales are
/// numerics::nv_tile_scale with the amax of the tensor, or with OuterScale::row that of the
/// operand's row; FourOverSix takes the enlarged one if its four_over_six_error is smaller. If the
/// rule asks for standard deviations, numerics::TileDeviation replaces the amax. delayed: the
/// current scale in `state` (DelayedState; zeros stand for 1), and state[kAmax] is raised to the
/// amax of the tensor. static: spec.static_scale with the multiplier RN(1/scale).
///
/// Codes: numerics::encode(spec.cast(), float_bits(scaled_value(scale, x)), word), where
/// scaled_value divides only under an fp32 scale with ScaleArithmetic::dec_div. The random word of
/// stochastic rounding is numerics::random_bits(operand.key.., index) with the element's logical
/// index in the source, r * C + c, whatever the number of its bits that the rounding uses. An
/// all-zero tile has zero codes with the signs of its zeros.
///
/// With a transform along K or a clamp, the tensor above is the transformed source, in FP32; an
/// element's logical index is its position in that tensor. A clamp writes operand.clamp_bounds.
///
/// Tiles with codebooks. numerics::Encoding::tile_logarithm: numerics::log_codebook of the largest
/// and the smallest nonzero magnitude of each tile, numerics::encode_log_codebook for each element;
/// scales(i, j) holds the scale of tile (i, j), scales(i, tile_cols + j) its step. Expansion:
/// numerics::expanded_group and the codes of numerics::expand, with the exponents after the scales
/// and then the centers.
///
/// A format of more than 8 bits takes no scale; its values are rounded once and stored as bf16 if
/// bf16 holds them all, else as f32. Equal types (bf16 to bf16, f32 to f32) keep their bits,
/// otherwise a NaN becomes the canonical one.
struct Quantize {
  static constexpr std::string_view kName = "quantize";
  static constexpr WorkClass kClass = WorkClass::quantization;

  TensorView source;
  bool transpose = false;
  TensorView state{};  ///< DelayedState of the tensor; empty without delayed scaling
  const QuantizedOperand& operand;

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("source", source));
    visit_quantizer_inputs(visit, operand);
    visit_written_operand(visit, operand);
    visit(updates("delayed state", state));
  }
  /// Throws Error for shapes or types that do not fit, an empty tensor, and what
  /// supports_quantization refuses.
  void check() const;
  /// Elements quantized.
  double work() const { return elements(source); }
};

/// Quantizes `source` into `first` and its transpose into `second`. A backend may read the source
/// only once.
struct QuantizeBoth {
  static constexpr std::string_view kName = "quantize_both";
  static constexpr WorkClass kClass = WorkClass::quantization;

  TensorView source;
  TensorView state{};
  const QuantizedOperand& first;
  const QuantizedOperand& second;

  /// Calls visit(op) for the quantization in each orientation.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    visit(Quantize{.source = source, .transpose = false, .state = state, .operand = first});
    visit(Quantize{.source = source, .transpose = true, .state = state, .operand = second});
  }

  template <class Visit>
  void for_each_tensor(const Visit& visit) const {
    visit(reads("source", source));
    visit_quantizer_inputs(visit, first);
    visit_quantizer_inputs(visit, second);
    visit_written_operand(visit, first);
    visit_written_operand(visit, second);
    visit(updates("delayed state", state));
  }
  void check() const {
    for_each_part([](const auto& op) { op.check(); });
  }
  /// Elements quantized.
  double work() const { return 2 * elements(source); }
};

}  // namespace fp8lab::ops
