#include "src/model/norm.hpp"

namespace fp8lab {
namespace {

/// `norm`, whose x is that of `input`.
template <class Op>
ops::Producer norm_of(const Residual& input, const Op& norm) {
  if (!input.summands) return norm;
  return ops::AddNorm<Op>{input.summands->a, input.summands->b, norm};
}

}  // namespace

ops::RmsNormForward Norm::rms_forward(const Work& work, const TensorView& x, const TensorView& y,
                                      std::int64_t first) const {
  return {x, work.parameter(parts_.weight).working(), parts_.epsilon, y,
          work.saved(parts_.rstd, first, x.rows)};
}

ops::LayerNormForward Norm::layer_forward(const Work& work, const TensorView& x,
                                          const TensorView& y, std::int64_t first) const {
  return {x,
          work.parameter(parts_.weight).working(),
          work.parameter(*parts_.bias).working(),
          parts_.epsilon,
          y,
          work.saved(*parts_.mean, first, x.rows),
          work.saved(parts_.rstd, first, x.rows)};
}

ops::RmsNormBackward Norm::rms_backward(const Work& work, const TensorView& dy, const TensorView& x,
                                        const TensorView& dx) const {
  const Parameter& weight = work.parameter(parts_.weight);
  return {dy, x, weight.working(), work.saved(parts_.rstd), dx, weight.gradient()};
}

ops::LayerNormBackward Norm::layer_backward(const Work& work, const TensorView& dy,
                                            const TensorView& x, const TensorView& dx) const {
  const Parameter& weight = work.parameter(parts_.weight);
  return {dy,
          x,
          weight.working(),
          work.saved(*parts_.mean),
          work.saved(parts_.rstd),
          dx,
          weight.gradient(),
          work.parameter(*parts_.bias).gradient()};
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
    case NormKind::rmsnorm: return work.run(rms_forward(work, x, y, 0));
    case NormKind::layernorm: return work.run(layer_forward(work, x, y, 0));
  }
}

void Norm::backward(Work& work, const TensorView& dy, const TensorView& x,
                    const TensorView& dx) const {
  switch (parts_.kind) {
    case NormKind::rmsnorm: return work.run(rms_backward(work, dy, x, dx));
    case NormKind::layernorm: return work.run(layer_backward(work, dy, x, dx));
  }
}

void Norm::backward_add(Work& work, const TensorView& dy, const TensorView& x,
                        const TensorView& gradient) const {
  switch (parts_.kind) {
    case NormKind::rmsnorm:
      return work.run(ops::RmsNormBackwardAdd{rms_backward(work, dy, x, dy), gradient});
    case NormKind::layernorm:
      return work.run(ops::LayerNormBackwardAdd{layer_backward(work, dy, x, dy), gradient});
  }
}

}  // namespace fp8lab
