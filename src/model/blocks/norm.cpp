#include "src/model/blocks/norm.hpp"

namespace fp8lab {
namespace {

/// `norm`, whose x is that of `input`.
template <class Op>
ops::Producer norm_of(const Residual& input, const Op& norm) {
  if (!input.summands) return norm;
  return ops::AddNorm<Op>{.a = input.summands->a, .b = input.summands->b, .norm = norm};
}

}  // namespace

ops::RmsNormForward Norm::rms_forward(const Work& work, const TensorView& x, const TensorView& y,
                                      std::int64_t first) const {
  return {.x = x,
          .weight = work.parameter(parts_.weight).working(),
          .epsilon = parts_.epsilon,
          .y = y,
          .rstd = work.saved(parts_.rstd, first, x.rows)};
}

ops::LayerNormForward Norm::layer_forward(const Work& work, const TensorView& x,
                                          const TensorView& y, std::int64_t first) const {
  return {.x = x,
          .weight = work.parameter(parts_.weight).working(),
          .bias = work.parameter(*parts_.bias).working(),
          .epsilon = parts_.epsilon,
          .y = y,
          .mean = work.saved(*parts_.mean, first, x.rows),
          .rstd = work.saved(parts_.rstd, first, x.rows)};
}

ops::RmsNormBackward Norm::rms_backward(const Work& work, const TensorView& dy, const TensorView& x,
                                        const TensorView& dx) const {
  const Parameter& weight = work.parameter(parts_.weight);
  return {.dy = dy,
          .x = x,
          .weight = weight.working(),
          .rstd = work.saved(parts_.rstd),
          .dx = dx,
          .dweight = weight.gradient()};
}

ops::LayerNormBackward Norm::layer_backward(const Work& work, const TensorView& dy,
                                            const TensorView& x, const TensorView& dx) const {
  const Parameter& weight = work.parameter(parts_.weight);
  return {.dy = dy,
          .x = x,
          .weight = weight.working(),
          .mean = work.saved(*parts_.mean),
          .rstd = work.saved(parts_.rstd),
          .dx = dx,
          .dweight = weight.gradient(),
          .dbias = work.parameter(*parts_.bias).gradient()};
}

ops::Producer Norm::forward(const Work& work, const Residual& input, std::int64_t first) const {
  const TensorView y = work.saved(output(), first, input.x.rows);
  switch (parts_.kind) {
    case NormKind::rmsnorm: return norm_of(input, rms_forward(work, input.x, y, first));
    case NormKind::layernorm: break;
  }
  return norm_of(input, layer_forward(work, input.x, y, first));
}

void Norm::run(Work& work, const TensorView& x, const TensorView& y) const {
  switch (parts_.kind) {
    case NormKind::rmsnorm: return work.run(name(work), rms_forward(work, x, y, 0));
    case NormKind::layernorm: return work.run(name(work), layer_forward(work, x, y, 0));
  }
}

void Norm::backward(Work& work, const TensorView& dy, const TensorView& x,
                    const TensorView& dx) const {
  switch (parts_.kind) {
    case NormKind::rmsnorm: return work.run(name(work), rms_backward(work, dy, x, dx));
    case NormKind::layernorm: return work.run(name(work), layer_backward(work, dy, x, dx));
  }
}

void Norm::backward_add(Work& work, const TensorView& dy, const TensorView& x,
                        const TensorView& gradient) const {
  switch (parts_.kind) {
    case NormKind::rmsnorm:
      return work.run(name(work), ops::RmsNormBackwardAdd{.norm = rms_backward(work, dy, x, dy),
                                                          .gradient = gradient});
    case NormKind::layernorm:
      return work.run(name(work), ops::LayerNormBackwardAdd{.norm = layer_backward(work, dy, x, dy),
                                                            .gradient = gradient});
  }
}

}  // namespace fp8lab
