// Draws the next token.
#pragma once

#include <cstdint>
#include <span>

#include "src/config/config.hpp"

namespace fp8lab {

/// Key of one draw. A draw depends on nothing else: neither on the other sequences of the batch,
/// nor on threads or backend.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint32_t problem = 0;   ///< index of the prompt
  std::uint32_t sample = 0;    ///< index among several completions of the prompt
  std::uint32_t position = 0;  ///< position of the drawn token in the completion
};

/// Returns the next token, given its logits. With temperature 0 it is the token with the largest
/// logit, the first among equals. Otherwise, in double precision: weights
///   w_i = numerics::exp2_f64((z_i - max z) * (log2(e) / temperature)), 0 for a NaN;
/// top_k > 0 keeps the k largest logits. top_p < 1 keeps, among those, the shortest run from the
/// largest down whose weights, added in that order, reach top_p of their sum; among equal logits
/// the lower id counts as larger. The token is the first, by id, at which the running sum of kept
/// weights exceeds u times their sum, with u in (0, 1) from the first 53 bits of Philox4x32-10 with
/// key `seed` and counter (problem, sample, position). `excluded` (-1: none) is never chosen.
/// Throws RuntimeFailure if no token has a weight.
std::int32_t choose_token(std::span<const float> logits, const SamplingConfig& sampling,
                          const DrawKey& key, std::int32_t excluded = -1);

}  // namespace fp8lab
