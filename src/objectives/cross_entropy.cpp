#include "src/objectives/cross_entropy.hpp"

namespace fp8lab {

void CrossEntropy::run_chunk(Transformer& model, const Transformer::LogitChunk& chunk,
                             const Results& results) const {
  model.run(ops::CrossEntropy{.logits = chunk.logits,
                              .targets = model.column(kTargets, chunk),
                              .weights = model.column(weights_, chunk),
                              .scalars = results.scalars,
                              .token_loss = chunk.token_losses,
                              .dlogits = results.gradient,
                              .summed = results.summed});
}

}  // namespace fp8lab
