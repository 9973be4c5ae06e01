// Checks whether generation computes the same log-probabilities as training, bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/evaluation/generator.hpp"
#include "src/evaluation/rollout.hpp"

namespace fp8lab {

/// Reasons why two computations of the same log-probabilities may differ in their bits, one
/// sentence each. Empty: their bits must be equal.
struct Expectation {
  std::vector<std::string> reasons;
  bool is_exact() const { return reasons.empty(); }
};

/// Considers one model whose tokens arrive in different chunks and batches: every quantizer of
/// fprop.x must be local to a token (row_mixing), and none of its delayed scales may be in warm-up.
Expectation expect_same_bits(const Transformer& model);
/// Considers two models with the same weights: both must satisfy the above, and every linear layer
/// must have the same quantizers and GEMM in the forward pass.
Expectation expect_same_bits(const Transformer& training, const Transformer& generation);

/// One way to decode.
struct DecodingWay {
  std::int64_t together = 1;       ///< sequences decoded together
  std::int64_t prefill_chunk = 0;  ///< GenerationConfig::prefill_chunk
};
/// "batch 8", "batch 64, prefill in chunks of 16".
std::string name_of(const DecodingWay& way);

struct CertificateConfig {
  std::vector<SamplingConfig> samplings;  ///< samplings under which every prompt is completed
  std::int64_t max_new_tokens = 64;
  std::int32_t end = -1;          ///< value of GenerationConfig::end
  std::int32_t padding = 0;       ///< padding of Scorer
  std::vector<DecodingWay> ways;  ///< at least one; the first way chooses the tokens
  std::int64_t bucket = 16;       ///< number of positions that RolloutGap groups together
};

/// The first token whose bits differ: among all differing tokens, the one with the fewest tokens
/// before it in its completion; ties by sampling, then prompt.
struct FirstDifference {
  std::int64_t position = 0;  ///< position in the completion
  std::uint32_t problem = 0, sample = 0;
  double temperature = 0;
  double reference = 0, rollout = 0;  ///< log-probabilities
};

/// Compares the log-probabilities of all tokens during decoding with those of full forward passes.
struct Comparison {
  std::string name;       ///< name of the way to decode
  std::string reference;  ///< the model of the full passes: "training" or "generation"
  bool must_be_exact = false;
  RolloutGap gap;
  GapSpread spread;
  std::optional<FirstDifference> first;
  /// Number of tokens for which this way to decode would have chosen another one.
  std::int64_t chosen_otherwise = 0;

  bool is_exact() const { return gap.different + chosen_otherwise == 0; }
  bool fails() const { return must_be_exact && !is_exact(); }
};

struct Certificate {
  Expectation pair;        ///< training against generation
  Expectation generation;  ///< generation against itself
  std::int64_t sequences = 0;
  /// Full forward passes of training, with texts at multiples of the kv tile (Packing::tiles),
  /// against every way to decode.
  std::vector<Comparison> training;
  /// Full forward passes of the generating model against every way to decode.
  std::vector<Comparison> whole;
  /// Full forward passes of training, with texts packed as documents, against the first way. Equal
  /// bits are never required, because the tiles of attention start with the sequence.
  Comparison packed;

  /// Returns true if nothing in `training` and `whole` differs where equal bits are required.
  bool holds() const;
  /// Returns true if nothing in them differs at all.
  bool is_exact() const;
  /// Returns the comparison with the most differing tokens, the first among equals. It is
  /// chosen among those that fail, if there are any; else in `training`, if anything
  /// differs there; else in `whole`.
  const Comparison& worst() const;
};

/// Completes the prompts with `generation` in the first way, decodes the same tokens in every other
/// way, and scores them by full forward passes of both models. Precondition: the prompts leave room
/// for max_new_tokens in a sequence. All results are reproducible; delayed scales are not updated.
/// `generation` may be `training`. `report` receives the tokens that are decoded or scored, of
/// those of all parts. Throws Error for a way with more sequences than there are prompts, or more
/// than one pass takes tokens, and under the conditions of Generator.
Certificate certify(Backend& backend, Transformer& training, Transformer& generation,
                    const StepContext& context, const std::vector<Prompt>& prompts,
                    const CertificateConfig& config, const PartReport& report);

}  // namespace fp8lab
