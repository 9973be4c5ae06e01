// Whether generation computes the same log-probabilities as training, bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/evaluation/generator.hpp"
#include "src/evaluation/rollout.hpp"

namespace fp8lab {

/// Why two computations of the same log-probabilities need not have the same bits, one sentence
/// each; none: they have to.
struct Expectation {
  std::vector<std::string> reasons;
  bool is_exact() const { return reasons.empty(); }
};

/// Of one model, whose tokens arrive in different pieces and company: every quantizer of fprop.x
/// must be local to a token (row_mixing), and no delayed scale of it in its warm-up.
Expectation expect_same_bits(const Transformer& model);
/// Of two models with the same weights: that of each, and for every linear layer the same
/// quantizers and GEMM of the forward pass.
Expectation expect_same_bits(const Transformer& training, const Transformer& generation);

/// One way to decode.
struct DecodingWay {
  std::int64_t together = 1;       ///< sequences
  std::int64_t prefill_chunk = 0;  ///< GenerationConfig::prefill_chunk
};
/// "batch 8", "batch 64, prefill in chunks of 16".
std::string name_of(const DecodingWay& way);

struct CertificateConfig {
  std::vector<SamplingConfig> samplings;  ///< every prompt is completed under each
  std::int64_t max_new_tokens = 64;
  std::int32_t end = -1;          ///< GenerationConfig::end
  std::int32_t padding = 0;       ///< Scorer
  std::vector<DecodingWay> ways;  ///< at least one; the first chooses the tokens
  std::int64_t bucket = 16;       ///< positions that a RolloutGap counts together
};

/// Where the bits of a token part first: of all tokens that differ, one with the fewest before it
/// in its completion, the first by sampling and prompt.
struct FirstDifference {
  std::int64_t position = 0;  ///< in the completion
  std::uint32_t problem = 0, sample = 0;
  double temperature = 0;
  double reference = 0, rollout = 0;  ///< log-probabilities
};

/// Log-probabilities of all tokens when they are decoded, against those of full forward passes.
struct Comparison {
  std::string name;       ///< of the way to decode
  std::string reference;  ///< what makes the full passes: "training" or "generation"
  bool must_be_exact = false;
  RolloutGap gap;
  GapSpread spread;
  std::optional<FirstDifference> first;
  /// Tokens that this way to decode would have chosen otherwise.
  std::int64_t chosen_otherwise = 0;

  bool is_exact() const { return gap.different + chosen_otherwise == 0; }
  bool fails() const { return must_be_exact && !is_exact(); }
};

struct Certificate {
  Expectation pair;        ///< of training and generation
  Expectation generation;  ///< of generation by itself
  std::int64_t sequences = 0;
  /// Full forward passes of training, texts at multiples of the kv tile (Packing::tiles), against
  /// every way to decode.
  std::vector<Comparison> training;
  /// Full forward passes of the model that generates, against every way to decode.
  std::vector<Comparison> whole;
  /// Full forward passes of training, texts packed as documents, against the first way: equal bits
  /// are never due, because the tiles of attention start with the sequence.
  Comparison packed;

  /// Nothing of `training` and `whole` differs where it must not.
  bool holds() const;
  /// Nothing of them differs.
  bool is_exact() const;
  /// The one with the most tokens that differ, the first of equals: of those that fail, if any; of
  /// `training`, if anything differs there; of `whole`.
  const Comparison& worst() const;
};

/// Completes the prompts with `generation` in the first way, then makes every other way decode the
/// same tokens, and scores them by full forward passes of both models. The prompts leave room for
/// max_new_tokens in a sequence. Everything is reproducible; delayed scales stay what they are.
/// `generation` may be `training`. `report` is told each part before it begins. Throws Error for a
/// way with more sequences than prompts, or than one pass takes tokens, and as Generator does.
Certificate certify(Backend& backend, Transformer& training, Transformer& generation,
                    const StepContext& context, const std::vector<Prompt>& prompts,
                    const CertificateConfig& config,
                    const std::function<void(const std::string&)>& report);

}  // namespace fp8lab
