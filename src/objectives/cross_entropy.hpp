// Cross-entropy of the tokens that have a target: all tokens of running text, those of the answers
// in supervised fine-tuning (Batch::weights).
#pragma once

#include <cstdint>
#include <functional>

#include "src/model/transformer.hpp"

namespace fp8lab::objectives {

/// What an objective leaves in the place of the logits.
enum class Leaves : std::uint8_t {
  logits,
  gradient,  ///< of the mean over all trained tokens of the step (scalars[kInverseTokens])
};

/// After forward(): adds the loss of the batch, in nats, to scalars[kLossSum]; token_losses() are
/// its terms, added in one order for any chunks. backward() follows Leaves::gradient. `look` is
/// called with each chunk of logits before the next takes its place.
void cross_entropy(Transformer& model, const TensorView& scalars, Leaves leaves,
                   const std::function<void(const Transformer::LogitChunk&)>& look = {});

}  // namespace fp8lab::objectives
