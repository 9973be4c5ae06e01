// Cross-entropy over the tokens that have a target: all tokens of running text, and only those of
// the answers in supervised fine-tuning (Batch::weights).
#pragma once

#include <cstdint>
#include <functional>

#include "src/model/transformer.hpp"

namespace fp8lab::objectives {

/// What an objective writes into the logits buffer.
enum class Leaves : std::uint8_t {
  logits,
  gradient,  ///< gradient of the mean over all trained tokens of the step (scalars[kInverseTokens])
};

/// Adds the loss of the batch, in nats, to scalars[kLossSum]. Precondition: forward() has run.
/// token_losses() are its terms, added in the same order however the logits are chunked.
/// backward() may follow only with Leaves::gradient. `look` is called with each chunk of logits
/// before the next one overwrites it.
void cross_entropy(Transformer& model, const TensorView& scalars, Leaves leaves,
                   const std::function<void(const Transformer::LogitChunk&)>& look = {});

}  // namespace fp8lab::objectives
