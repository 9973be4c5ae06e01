// Completions of many prompts, token by token, with a key-value cache.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/config/config.hpp"
#include "src/evaluation/sampling.hpp"
#include "src/evaluation/stop.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// What is to be completed.
struct Prompt {
  std::vector<std::int32_t> tokens;
  std::uint32_t problem = 0, sample = 0;  ///< of DrawKey
  /// Unless empty, the completion: token after token is taken from here, whatever would be chosen.
  std::vector<std::int32_t> given = {};
};

struct Completion {
  std::vector<std::int32_t> tokens;       ///< without the prompt, with the end token
  std::vector<double> log_probabilities;  ///< of the tokens, in nats, if they were asked for
  bool ended = false;                     ///< by the end token
  /// How many of the tokens of a given completion would have been chosen otherwise, each after the
  /// given ones before it.
  std::int64_t chosen_otherwise = 0;
};

struct GenerationConfig {
  SamplingConfig sampling;
  std::int64_t max_new_tokens = 64;
  std::int32_t end = -1;  ///< a completion stops after this token; -1: none
  /// Of the model itself: temperature 1, nothing left out. As ops::CrossEntropy computes them.
  bool log_probabilities = false;
  /// Most tokens of one prompt that a forward pass reads; 0: as many as fit.
  std::int64_t prefill_chunk = 0;
};

/// What evaluations decode together: this many sequences, of this many tokens in all.
inline constexpr std::int64_t kDecodedTogether = 64;
inline constexpr std::int64_t kCachedTokens = 65536;

/// Decodes up to `sequences` prompts together; when one ends the next takes its place, so that
/// prompts are read beside tokens that are decoded. What comes out is independent of that if every
/// quantization of activations is local to a token; a scale of a whole tensor is that of the tokens
/// which happen to be computed together. Delayed scales keep their state.
class Generator {
 public:
  /// The cache is allocated here: `sequences`, at most transformer.shape().logit_rows(), of
  /// `capacity` tokens each. `backend`, `transformer` and the flag `stop` must outlive the
  /// generator.
  Generator(Backend& backend, Transformer& transformer, std::int64_t sequences,
            std::int64_t capacity, const std::atomic<bool>* stop = nullptr);

  /// Completions in the order of the prompts. A prompt and its completion have at most `capacity`
  /// tokens. The transformer's weights must have been prepared. Throws Error for a prompt that is
  /// empty, fills the cache or has a token outside the vocabulary, in its completion too if that is
  /// given, and EvaluationStopped.
  std::vector<Completion> generate(const StepContext& context, const std::vector<Prompt>& prompts,
                                   const GenerationConfig& config);

 private:
  /// A sequence of the cache at work.
  struct Slot {
    const Prompt* prompt = nullptr;  ///< null: free
    Completion* completion = nullptr;
    std::int64_t cached = 0;

    std::int64_t length() const;
    std::int32_t token(std::int64_t position) const;
  };

  void check(const std::vector<Prompt>& prompts) const;
  /// One forward pass over as many waiting tokens as it takes, at most `chunk` of a slot unless
  /// that is 0; the slots whose last token was one of them.
  std::vector<Slot*> advance(const StepContext& context, std::int64_t chunk);
  std::vector<std::int32_t> choose(const std::vector<Slot*>& slots, const GenerationConfig& config);
  /// The given tokens in the places of chosen ones.
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
