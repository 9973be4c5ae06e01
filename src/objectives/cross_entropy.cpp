#include "src/objectives/cross_entropy.hpp"

namespace fp8lab::objectives {

void cross_entropy(Transformer& model, const TensorView& scalars, Leaves leaves,
                   const std::function<void(const Transformer::LogitChunk&)>& look) {
  const bool is_differentiated = leaves == Leaves::gradient;
  model.for_each_chunk(is_differentiated, [&](const Transformer::LogitChunk& chunk) {
    model.run(ops::CrossEntropy{chunk.logits, model.column(kTargets, chunk),
                                model.column(kTargetWeights, chunk), scalars, chunk.token_losses,
                                is_differentiated ? chunk.logits : TensorView{},
                                chunk.is_last ? model.token_losses() : TensorView{}});
    if (look) look(chunk);
  });
}

}  // namespace fp8lab::objectives
