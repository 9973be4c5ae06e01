// Computes log-probabilities of given tokens by full forward passes.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/data/batch.hpp"
#include "src/evaluation/stop.hpp"
#include "src/model/part_report.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// A text whose tokens from `first` (at least 1) on are scored, each after all tokens before it.
struct ScoredText {
  std::vector<std::int32_t> tokens;
  std::int64_t first = 1;
};

/// Positions of texts in a sequence.
enum class Packing : std::uint8_t {
  /// At multiples of the attention's kv tile, so that a text has the same bits as in a sequence of
  /// its own if every quantization is local to a token.
  tiles,
  /// Directly one after another, as Dataset packs prompt-response documents. The tiles of attention
  /// start with the sequence, so a text that does not begin at a multiple of the tile is summed in
  /// other groups than on its own.
  documents,
};

/// Packs texts into micro-batches and scores them.
class Scorer {
 public:
  /// `padding` fills the rest of a micro-batch. Precondition: `backend`, `transformer` and the flag
  /// `stop` outlive the scorer.
  Scorer(Backend& backend, Transformer& transformer, std::int32_t padding,
         const std::atomic<bool>* stop = nullptr);

  /// Returns for every text the log-probabilities of tokens first, first + 1, ... in nats, as
  /// computed by ops::CrossEntropy. Precondition: the weights are prepared. Throws Error for a text
  /// without scored tokens or longer than a sequence, and EvaluationStopped. `report`, unless null,
  /// receives the number of scored texts before each pass.
  std::vector<std::vector<double>> score(const StepContext& context,
                                         const std::vector<ScoredText>& texts,
                                         Packing packing = Packing::tiles,
                                         const PartReport& report = {});

 private:
  /// Position of a text's first token in the micro-batch.
  struct Place {
    std::size_t text = 0;
    std::int64_t token = 0;
  };
  /// Places as many texts from `next` on as fit, at least one.
  std::vector<Place> pack(const std::vector<ScoredText>& texts, std::size_t next, Packing packing,
                          Batch& batch) const;

  Backend& backend_;
  Transformer& transformer_;
  std::int32_t padding_;
  TensorView scalars_;
  const std::atomic<bool>* stop_;
};

}  // namespace fp8lab
