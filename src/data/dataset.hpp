// Fills batches with packed sequences in a deterministic order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/data/batch.hpp"
#include "src/data/corpus.hpp"

namespace fp8lab {

/// Position in the stream of one source; part of a checkpoint.
struct DataCursor {
  std::int64_t epoch = 0;
  std::int64_t document = 0;  ///< index into the order of the epoch
  std::int64_t offset = 0;    ///< first unread token of that document
  bool operator==(const DataCursor&) const = default;
};

/// Endless stream over the documents of one source, reshuffled in each epoch by (seed, stream,
/// epoch). Running text is cut at the end of a sequence and continues in the next one.
/// Prompt-response documents are not split: one that does not fit starts the next sequence, and one
/// longer than a sequence is truncated.
class Dataset {
 public:
  Dataset(std::shared_ptr<const Corpus> corpus, DataForm form, std::uint64_t seed,
          std::uint32_t stream);

  Batch next(std::int64_t sequences, std::int64_t sequence_length);
  /// Fills row `sequence` of a batch. Precondition: the row contains padding.
  void fill_sequence(Batch& batch, std::int64_t sequence);

  const DataCursor& cursor() const { return cursor_; }
  void seek(const DataCursor& cursor);
  const Corpus& corpus() const { return *corpus_; }

 private:
  void shuffle();
  DocumentView current() const;
  void advance_document();
  /// Fills the columns that have numbers of documents for `count` tokens of the present document,
  /// whose first one is token `first` of the batch.
  void fill_values(Batch& batch, std::size_t first, std::size_t count) const;

  std::shared_ptr<const Corpus> corpus_;
  DataForm form_;
  std::uint64_t seed_;
  std::uint32_t stream_;
  DataCursor cursor_;
  std::vector<std::uint32_t> order_;
};

}  // namespace fp8lab
