// Mixes several sources in fixed proportions: the data of a stage.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/data/dataset.hpp"
#include "src/data/model_vocabulary.hpp"

namespace fp8lab {

/// Chooses the source of the next sequence: the one furthest behind its share. The choice depends
/// only on the weights, the seed and the number of earlier sequences. All sequences have the same
/// length, so shares of sequences are shares of tokens (including the padding of prompt-response
/// documents). No source is ever two sequences or more ahead of its share. The seed shifts each
/// source's share by less than one sequence.
class MixtureSchedule {
 public:
  MixtureSchedule(const std::vector<double>& weights, std::uint64_t seed, std::uint32_t stream);

  std::size_t next();
  std::int64_t sequences() const { return sequences_; }  ///< number of calls of next()
  /// Restores the state of a new schedule after `sequences` calls of next().
  void seek(std::int64_t sequences);

 private:
  std::vector<double> shares_;  ///< normalized to sum 1
  std::vector<double> phases_;  ///< in (0, 1)
  std::vector<std::int64_t> counts_;
  std::int64_t sequences_ = 0;
};

/// The opened sources of a stage or of an evaluation; their contents must
/// not change during reading.
struct DataSources {
  DataForm form = DataForm::running_text;
  std::vector<std::shared_ptr<const Corpus>> corpora;
  std::vector<double> weights;

  const Vocabulary& vocabulary() const { return corpora.front()->vocabulary(); }
  /// Calls Corpus::require_unchanged for all sources. Mixture::next calls it itself.
  void require_unchanged() const {
    for (const auto& corpus : corpora) corpus->require_unchanged();
  }
};

struct StageSources {
  std::string where;  ///< "stage NAME"
  const DataSources* sources = nullptr;
};

/// Throws Error if a run combines data of different tokenizers, or bytes with ids
/// of an unknown tokenizer.
void check_one_tokenizer(const std::vector<StageSources>& stages);

/// Opens every source, with the numbers of documents that `columns` need (open_corpus). Throws
/// Error if their tokenizers differ, and if check_vocabulary refuses them for `model`; `where`
/// names the stage.
DataSources open_sources(const DataConfig& config, const ModelVocabulary& model,
                         const std::string& where, std::span<const ColumnSpec> columns = {});

/// Returns each distinct vocabulary_note of the sources.
std::vector<std::string> vocabulary_notes(const DataSources& sources, const ModelVocabulary& model);

/// Throws Error that names `where` and the source if one of them has no target: every trained token
/// lies beyond the first `sequence_length` tokens of its document.
void check_targets(const DataSources& sources, std::int64_t sequence_length,
                   const std::string& where);

/// The reading position of a Mixture; part of a checkpoint.
struct StreamPosition {
  std::int64_t sequences = 0;       ///< number of sequences packed so far
  std::vector<DataCursor> cursors;  ///< cursors of the sources, in their order
};

/// Endless stream of packed sequences, each from one source. With a single source, the batches
/// are those of its Dataset.
class Mixture {
 public:
  /// `columns` are those of the batches beside kBatchColumns; the sources were opened with them.
  Mixture(const DataSources& sources, std::uint64_t seed, std::uint32_t stream,
          std::vector<ColumnSpec> columns = {});

  /// Throws RuntimeFailure if a file has been written to since it was opened.
  Batch next(std::int64_t sequences, std::int64_t sequence_length);
  /// Returns the source of each sequence of the last batch.
  const std::vector<std::size_t>& chosen() const { return chosen_; }

  StreamPosition position() const;
  /// Continues from `position`. Throws Error if it does not fit the sources.
  void seek(const StreamPosition& position);

 private:
  std::vector<std::shared_ptr<const Corpus>> corpora_;
  std::vector<Dataset> datasets_;
  MixtureSchedule schedule_;
  std::int32_t padding_;
  std::vector<ColumnSpec> columns_;
  std::vector<std::size_t> chosen_;
};

}  // namespace fp8lab
