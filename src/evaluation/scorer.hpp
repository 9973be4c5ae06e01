// Log-probabilities of given tokens by full forward passes.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/data/dataset.hpp"
#include "src/evaluation/stop.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// Tokens of which those from `first` (at least 1) on are scored, each after all before it.
struct ScoredText {
  std::vector<std::int32_t> tokens;
  std::int64_t first = 1;
};

/// Where texts lie in a sequence.
enum class Packing : std::uint8_t {
  /// From multiples of the attention's kv tile on, so that their bits are those of a sequence of
  /// their own if every quantization is local to a token.
  tiles,
  /// One directly after the other, as Dataset packs prompt-response documents. The tiles of
  /// attention start with the sequence: a text from between their multiples on is summed in other
  /// groups than by itself.
  documents,
};

/// Packs texts into micro-batches.
class Scorer {
 public:
  /// `padding` fills what is left of a micro-batch. `backend`, `transformer` and the flag `stop`
  /// must outlive the scorer.
  Scorer(Backend& backend, Transformer& transformer, std::int32_t padding,
         const std::atomic<bool>* stop = nullptr);

  /// For every text the log-probabilities of tokens first, first + 1, ... in nats, as
  /// ops::CrossEntropy computes them. The weights must have been prepared. Throws Error for a
  /// text without scored tokens or longer than a sequence, and EvaluationStopped.
  std::vector<std::vector<double>> score(const StepContext& context,
                                         const std::vector<ScoredText>& texts,
                                         Packing packing = Packing::tiles);

 private:
  /// Where the first token of a text lies in the micro-batch.
  struct Place {
    std::size_t text = 0;
    std::int64_t token = 0;
  };
  /// Places as many of the texts from `next` on as fit, at least one.
  std::vector<Place> pack(const std::vector<ScoredText>& texts, std::size_t next, Packing packing,
                          Batch& batch) const;

  Backend& backend_;
  Transformer& transformer_;
  std::int32_t padding_;
  TensorView scalars_;
  const std::atomic<bool>* stop_;
};

}  // namespace fp8lab
