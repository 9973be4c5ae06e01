#include "emulation/ops/pointwise/add_norm.hpp"

#include "emulation/ops/checks.hpp"

namespace fp8lab::ops {

template <class NormBackward>
void NormBackwardAdd<NormBackward>::check() const {
  for_each_part([](const auto& op) { op.check(); });
  const Checks checks(kName);
  for (const TensorView& view : {norm.dy, norm.x, norm.dx}) {
    checks.require(gradient.data != view.data, "gradient must not be dy, x or dx");
  }
}
template struct NormBackwardAdd<RmsNormBackward>;
template struct NormBackwardAdd<LayerNormBackward>;

}  // namespace fp8lab::ops
