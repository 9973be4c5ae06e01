#include "emulation/cpu/quantize.hpp"

#include <algorithm>

#include "emulation/cpu/clamp.hpp"
#include "emulation/cpu/operand_decode.hpp"
#include "emulation/cpu/quantize_checks.hpp"
#include "emulation/cpu/quantize_codebook.hpp"
#include "emulation/cpu/quantizer.hpp"
#include "emulation/cpu/transform.hpp"
#include "emulation/numerics/scaling.hpp"

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

/// Counts one more step in the window; after `length` steps starts again from none.
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

void write_bounds(const TensorView& source, QuantizedOperand& operand) {
  clamp_bounds_of(operand);  // there is memory for them
  const numerics::ClampBounds bounds = clamp_bounds(source, operand.spec.transform.quantile);
  float* const values = operand.clamp_bounds.row<float>(0);
  values[0] = bounds.lower;
  values[1] = bounds.upper;
}

/// quantize of the source itself.
void quantize_as_is(const TensorView& source, bool transpose, const RandomKey& key,
                    const TensorView& state, QuantizedOperand& operand) {
  if (!operand.spec.is_quantized()) return cast_operand(source, transpose, key, operand);
  if (operand.spec.has_codebooks()) return quantize_codebooks(source, transpose, key, operand);
  Quantizer quantizer(source, transpose, key, operand);
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

void quantize(const TensorView& source, bool transpose, const RandomKey& key,
              const TensorView& state, QuantizedOperand& operand) {
  check_quantize(source, transpose, state, operand);
  operand.key = key;
  const Transform& transform = operand.spec.transform;
  if (!transform || transform.is_expansion()) {
    return quantize_as_is(source, transpose, key, state, operand);
  }
  if (transform.is_clamp()) write_bounds(source, operand);
  FloatMatrix values = transformed(source, transpose, operand);
  quantize_as_is(values.view(), transpose, key, state, operand);
}

void update_delayed_scale(const QuantSpec& spec, const TensorView& state) {
  check_delayed_state(spec, state);
  float* const values = state.row<float>(0);
  const bool window = spec.amax_algorithm == AmaxAlgorithm::window;
  if (values[DelayedState::kAmax] == 0.0f && !window) return;
  float* const history = values + DelayedState::kHistory;
  std::copy_backward(history, history + spec.history_length - 1, history + spec.history_length);
  history[0] = values[DelayedState::kAmax];
  values[DelayedState::kAmax] = 0.0f;
  if (window && !window_is_full(history[spec.history_length], spec.history_length)) return;

  std::uint32_t amax = float_bits(history[0]);
  if (spec.amax_algorithm != AmaxAlgorithm::most_recent) {
    for (int i = 1; i < spec.history_length; ++i) amax = std::max(amax, float_bits(history[i]));
  }
  if ((amax == 0 && !window) || amax >= numerics::kF32Infinity) return;
  const TileScale scale = numerics::tile_scale(spec.scale, spec.format, bits_float(amax));
  values[DelayedState::kScale] = scale.decode;
  values[DelayedState::kMultiplier] = scale.multiplier;
}

}  // namespace fp8lab::cpu
