#include "src/objectives/cross_entropy.hpp"

namespace fp8lab::objectives {

void cross_entropy(Transformer& model, const TensorView& scalars, Leaves leaves) {
  model.run(ops::CrossEntropy{model.logits(), model.targets(), model.target_weights(), scalars,
                              model.token_losses(),
                              leaves == Leaves::gradient ? model.logits() : TensorView{}});
}

}  // namespace fp8lab::objectives
