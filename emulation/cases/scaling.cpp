// Cases of state that exists before a tensor is quantized: delayed scales, smoothing factors.
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "emulation/cases/list.hpp"
#include "emulation/cases/operand_draw.hpp"

namespace fp8lab {
namespace {

/// Draws zero, infinite, NaN, subnormal or ordinary values.
float draw_amax(CaseDraw& draw) {
  switch (draw.word() % 8) {
    case 0: return 0.0f;
    case 1: return std::numeric_limits<float>::infinity();
    case 2: return std::numeric_limits<float>::quiet_NaN();
    case 3: return numerics::bits_float(draw.word() & 0x007FFFFFu);
    default: return numerics::bits_float((100u << 23) + draw.word() % (60u << 23));
  }
}

/// Draws a state in the middle of a run: a scale in use, an amax, a history, and for a window
/// the number of its steps.
HostTensor draw_state(CaseDraw& draw, const QuantSpec& spec) {
  HostTensor state = state_of(draw, spec);
  auto* const value = reinterpret_cast<float*>(state.data.data());
  value[DelayedState::kScale] = numerics::bits_float((110u + draw.word() % 30u) << 23);
  value[DelayedState::kMultiplier] = 1.0f / value[DelayedState::kScale];
  value[DelayedState::kAmax] = draw_amax(draw);
  for (int i = 0; i < spec.history_length; ++i) {
    value[DelayedState::kHistory + i] = draw_amax(draw);
  }
  if (spec.amax_algorithm == AmaxAlgorithm::window) {
    value[DelayedState::kHistory + spec.history_length] =
        static_cast<float>(draw.integer(0, spec.history_length - 1));
  }
  return state;
}

void update(CaseDraw& draw, const QuantSpec& spec, HostTensor state, const char* what) {
  draw.add(fmt::format("update_delayed_scale {}", label(spec)), what, {std::move(state)},
           [spec](Backend& b, const Views& t) {
             b.run(ops::UpdateDelayedScale{spec, t[0]});
           });
}

void smooth(CaseDraw& draw, const char* name, bool is_set) {
  const Smoothing smoothing = *transform_from_name(name).value().as<Smoothing>();
  const MatrixShape s = draw.shape();
  const std::int64_t k = s.cols, other_rows = draw.integer(1, 300);
  const bool transpose_a = draw.one_in(2), transpose_b = draw.one_in(2), wild = draw.one_in(4);
  const DType dtype = draw.activation_type();
  const auto source = [&](std::int64_t rows, bool transpose) {
    const MatrixShape shape = MatrixShape{rows, k}.transposed_if(transpose);
    return draw.values(dtype, shape.rows, shape.cols, wild);
  };
  HostTensor factors = flat(magnitudes(draw.output(DType::f32, 1, k)));
  if (!is_set) factors = zeroed(std::move(factors));
  draw.add(fmt::format("smoothing_factors {}", name),
           fmt::format("{} ({}, {}) and ({}, {}){}{}{}", name_of(dtype), s.rows, k, other_rows, k,
                       transpose_a ? " A transposed" : "", transpose_b ? " B transposed" : "",
                       is_set ? " set before" : ""),
           {source(s.rows, transpose_a), source(other_rows, transpose_b), std::move(factors)},
           [smoothing, transpose_a, transpose_b](Backend& b, const Views& t) {
             b.run(ops::SmoothingFactors{.smoothing = smoothing,
                                         .a = t[0],
                                         .transpose_a = transpose_a,
                                         .b = t[1],
                                         .transpose_b = transpose_b,
                                         .factors = t[2]});
           });
}

}  // namespace

template <>
void draw_cases<ops::UpdateDelayedScale>(CaseDraw& draw) {
  for (const auto& [format, scale] : {std::pair{numerics::kE5M2, numerics::ScaleFormat::fp32},
                                      std::pair{numerics::kE4M3, numerics::ScaleFormat::pow2}}) {
    for (const AmaxAlgorithm algorithm :
         {AmaxAlgorithm::max, AmaxAlgorithm::most_recent, AmaxAlgorithm::window}) {
      QuantSpec spec = quantized(format, {0, 0}, scale);
      spec.scale_source = ScaleSource::delayed;
      spec.amax_algorithm = algorithm;
      spec.history_length = static_cast<int>(draw.integer(1, draw.round() % 4 == 0 ? 20 : 1500));
      HostTensor first = state_of(draw, spec);
      const float amax = numerics::bits_float((100u << 23) + draw.word() % (60u << 23));
      std::memcpy(&first.data[DelayedState::kAmax * sizeof amax], &amax, sizeof amax);
      update(draw, spec, std::move(first), "first step");
      for (int i = 0; i < 8; ++i) update(draw, spec, draw_state(draw, spec), "later step");
    }
  }
}

template <>
void draw_cases<ops::SmoothingFactors>(CaseDraw& draw) {
  for (const char* name : {"smooth:0", "smooth:0.5", "smooth:1", "smooth:0.3:static"}) {
    for (const bool is_set : {false, true}) smooth(draw, name, is_set);
  }
}

}  // namespace fp8lab
