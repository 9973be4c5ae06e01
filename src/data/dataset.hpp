// Batches of packed sequences in a deterministic order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/data/corpus.hpp"

namespace fp8lab {

/// `sequences` rows of `sequence_length` tokens, flattened. A document never attends to another one
/// (document_start) and its positions start at 0.
struct Batch {
  std::int64_t sequences = 0;
  std::int64_t sequence_length = 0;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;         ///< next token of the same document
  std::vector<float> weights;                ///< 1 where the target is trained on, else 0
  std::vector<std::int32_t> positions;       ///< within the document
  std::vector<std::int32_t> document_start;  ///< index within the sequence
  /// Of its source, the document that the token is of; -1: padding. Empty where nobody counts them.
  std::vector<std::int64_t> documents;
  std::int64_t trained_tokens = 0;  ///< sum of weights

  Batch() = default;
  /// Nothing but padding, which is not trained on.
  Batch(std::int64_t sequences, std::int64_t sequence_length, std::int32_t padding);
};

/// Where the stream of one source stands; part of a checkpoint.
struct DataCursor {
  std::int64_t epoch = 0;
  std::int64_t document = 0;  ///< index into the epoch's order
  std::int64_t offset = 0;    ///< first token of that document not consumed yet
  bool operator==(const DataCursor&) const = default;
};

/// Endless stream over the documents of one source, shuffled anew each epoch by (seed, stream,
/// epoch). Running text is cut where a sequence ends and goes on in the next one. Prompt-response
/// documents stay whole: one that does not fit starts the next sequence, one longer than a sequence
/// loses its end.
class Dataset {
 public:
  Dataset(std::shared_ptr<const Corpus> corpus, DataForm form, std::uint64_t seed,
          std::uint32_t stream);

  Batch next(std::int64_t sequences, std::int64_t sequence_length);
  /// Fills row `sequence` of a batch that holds padding there.
  void fill_sequence(Batch& batch, std::int64_t sequence);

  const DataCursor& cursor() const { return cursor_; }
  void seek(const DataCursor& cursor);
  const Corpus& corpus() const { return *corpus_; }

 private:
  void shuffle();
  DocumentView current() const;
  void advance_document();

  std::shared_ptr<const Corpus> corpus_;
  DataForm form_;
  std::uint64_t seed_;
  std::uint32_t stream_;
  DataCursor cursor_;
  std::vector<std::uint32_t> order_;
};

}  // namespace fp8lab
