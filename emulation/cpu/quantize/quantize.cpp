
#include <algorithm>

#include "emulation/cpu/quantize/quantizer.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/ops/quantize/operand_checks.hpp"
#include "emulation/reference/clamp.hpp"
#include "emulation/reference/operand_decode.hpp"
#include "emulation/reference/quantize_codebook.hpp"
#include "emulation/reference/transform.hpp"

namespace fp8lab::cpu {
namespace {

using numerics::bits_float;
using numerics::float_bits;
using numerics::TileScale;

TileScale scale_in_force(const TensorView& state) {
  const float* values = state.row<float>(0);
  if (values[DelayedState::kScale] == 0.0f) return {};
  return {values[DelayedState::kScale], values[DelayedState::kMultiplier], false};
}

/// Counts one more step of the window. After `length` steps returns true and restarts the count.
bool window_is_full(float& steps, int length) {
  steps += 1.0f;
  if (steps < static_cast<float>(length)) return false;
  steps = 0.0f;
  return true;
}

void raise_amax(const TensorView& state, std::uint32_t amax) {
  float& running = state.row<float>(0)[DelayedState::kAmax];
  running = bits_float(std::max(float_bits(running), amax));
}

void write_bounds(const Clamp& clamp, const TensorView& source, const QuantizedOperand& operand) {
  reference::clamp_bounds_of(operand);  // throws Error if there is no memory for them
  const numerics::ClampBounds bounds = reference::clamp_bounds(source, clamp.quantile);
  float* const values = operand.clamp_bounds.row<float>(0);
  values[0] = bounds.lower;
  values[1] = bounds.upper;
}

/// Quantizes the source itself, without a transform.
void quantize_as_is(const TensorView& source, bool transpose, const TensorView& state,
                    const QuantizedOperand& operand) {
  if (!operand.spec.is_quantized()) return reference::cast_operand(source, transpose, operand);
  if (operand.spec.has_codebooks()) {
    return reference::quantize_codebooks(source, transpose, operand);
  }
  Quantizer quantizer(source, transpose, operand);
  const QuantSpec& spec = operand.spec;
  switch (spec.scale_source) {
    case ScaleSource::none: quantizer.quantize_with({}, false); return;
    case ScaleSource::static_scale:
      quantizer.quantize_with(
          {spec.static_scale, numerics::bounded_quotient(1.0f, spec.static_scale), false}, false);
      return;
    case ScaleSource::delayed:
      raise_amax(state, quantizer.quantize_and_measure(scale_in_force(state)));
      return;
    case ScaleSource::current:
      if (!spec.tile.is_tensor()) return quantizer.quantize_tiles();
      const std::uint32_t amax = quantizer.tensor_amax();
      quantizer.quantize_with(numerics::tile_scale(spec.scale, spec.format, bits_float(amax)),
                              amax < numerics::kF32Infinity);
      return;
  }
}

}  // namespace

void run(const ops::Quantize& op) {
  op.check();
  const Transform& transform = op.operand.spec.transform;
  if (!transform || transform.is<RangeExpansion>()) {
    return quantize_as_is(op.source, op.transpose, op.state, op.operand);
  }
  if (const auto* const clamp = transform.as<Clamp>()) write_bounds(*clamp, op.source, op.operand);
  reference::FloatMatrix values = reference::transformed(op.source, op.transpose, op.operand);
  quantize_as_is(values.view(), op.transpose, op.state, op.operand);
}

void run(const ops::UpdateDelayedScale& op) {
  op.check();
  float* const values = op.state.row<float>(0);
  const bool window = op.spec.amax_algorithm == AmaxAlgorithm::window;
  if (values[DelayedState::kAmax] == 0.0f && !window) return;
  float* const history = values + DelayedState::kHistory;
  std::copy_backward(history, history + op.spec.history_length - 1,
                     history + op.spec.history_length);
  history[0] = values[DelayedState::kAmax];
  values[DelayedState::kAmax] = 0.0f;
  if (window && !window_is_full(history[op.spec.history_length], op.spec.history_length)) return;

  std::uint32_t amax = float_bits(history[0]);
  if (op.spec.amax_algorithm != AmaxAlgorithm::most_recent) {
    for (int i = 1; i < op.spec.history_length; ++i) amax = std::max(amax, float_bits(history[i]));
  }
  if ((amax == 0 && !window) || amax >= numerics::kF32Infinity) return;
  const TileScale scale = numerics::tile_scale(op.spec.scale, op.spec.format, bits_float(amax));
  values[DelayedState::kScale] = scale.decode;
  values[DelayedState::kMultiplier] = scale.multiplier;
}

}  // namespace fp8lab::cpu
