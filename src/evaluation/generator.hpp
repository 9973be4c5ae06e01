// Completes many prompts token by token, with a key-value cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/config/config.hpp"
#include "src/evaluation/sampling.hpp"
#include "src/evaluation/stop.hpp"
#include "src/model/part_report.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// A prompt to complete.
struct Prompt {
  std::vector<std::int32_t> tokens;
  std::uint32_t problem = 0, sample = 0;  ///< fields of DrawKey
  /// Unless empty, the completion to decode: its tokens replace the ones that would be chosen.
  std::vector<std::int32_t> given = {};
};

struct Completion {
  std::vector<std::int32_t> tokens;       ///< without the prompt, with the end token
  std::vector<double> log_probabilities;  ///< of the tokens, in nats, if requested
  bool ended = false;                     ///< true if the end token ended the completion
  /// Number of tokens of a given completion for which another token would have been chosen, each
  /// after the given tokens before it.
  std::int64_t chosen_otherwise = 0;
};

struct GenerationConfig {
  SamplingConfig sampling;
  std::int64_t max_new_tokens = 64;
  std::int32_t end = -1;  ///< token that ends a completion; -1: none
  /// Records log-probabilities of the model itself (temperature 1, no filtering),
  /// computed like ops::CrossEntropy.
  bool log_probabilities = false;
  /// Maximum number of tokens of one prompt per forward pass; 0: as many as fit.
  std::int64_t prefill_chunk = 0;
};

/// Limits of evaluations: the number of sequences decoded together, and
/// their total number of tokens.
inline constexpr std::int64_t kDecodedTogether = 64;
inline constexpr std::int64_t kCachedTokens = 65536;

/// Decodes up to `sequences` prompts together. When one ends, the next takes its place, so a pass
/// can read prompts and decode tokens at the same time. Results do not depend on this batching if
/// every quantization of activations is local to a token; a scale of a whole tensor depends on the
/// tokens that are computed together. Delayed scales are not updated.
class Generator {
 public:
  /// Allocates the cache: `sequences`, at most transformer.shape().logit_rows(), of `capacity`
  /// tokens each. Precondition: `backend`, `transformer` and the flag `stop` outlive the generator.
  Generator(Backend& backend, Transformer& transformer, std::int64_t sequences,
            std::int64_t capacity, const std::atomic<bool>* stop = nullptr);

  /// Returns the completions in the order of the prompts. Preconditions: a prompt and its
  /// completion have at most `capacity` tokens; the transformer's weights are prepared. Throws
  /// Error for a prompt that is empty, fills the cache or contains a token outside the vocabulary
  /// (also in a given completion), and EvaluationStopped. `report`, unless null, receives before
  /// each pass the tokens that are read or decoded, of all that the longest completions would have.
  std::vector<Completion> generate(const StepContext& context, const std::vector<Prompt>& prompts,
                                   const GenerationConfig& config, const PartReport& report = {});

  /// Returns the tokens of a prompt and of its completion of the largest length.
  static std::size_t most_tokens(const Prompt& prompt, const GenerationConfig& config);
  static std::size_t most_tokens(const std::vector<Prompt>& prompts,
                                 const GenerationConfig& config);

 private:
  /// A sequence of the cache in use.
  struct Slot {
    const Prompt* prompt = nullptr;  ///< null: free slot
    Completion* completion = nullptr;
    std::int64_t cached = 0;

    std::int64_t length() const;
    std::int32_t token(std::int64_t position) const;
  };

  void check(const std::vector<Prompt>& prompts) const;
  /// Returns the tokens that the sequences in progress still have to read or decode, at most.
  std::size_t tokens_left(const GenerationConfig& config) const;
  /// Runs one forward pass over as many waiting tokens as fit, at most `chunk` per slot unless it
  /// is 0. Returns the slots whose last token was in the pass.
  std::vector<Slot*> advance(const StepContext& context, std::int64_t chunk);
  std::vector<std::int32_t> choose(const std::vector<Slot*>& slots, const GenerationConfig& config);
  /// Replaces chosen tokens by the given ones.
  static void replace_by_given(const std::vector<Slot*>& slots, std::vector<std::int32_t>& tokens);
  void accept(const std::vector<Slot*>& slots, const std::vector<std::int32_t>& tokens,
              const GenerationConfig& config);

  Backend& backend_;
  Transformer& transformer_;
  KvCache cache_;
  TensorView scalars_;
  std::vector<Slot> slots_;
  const std::atomic<bool>* stop_;
};

}  // namespace fp8lab
