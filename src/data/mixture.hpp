// Several sources in fixed proportions: the data of a stage.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/dataset.hpp"
#include "src/data/model_vocabulary.hpp"

namespace fp8lab {

/// Which source fills the next sequence. The choice depends on the weights, the seed and the number
/// of sequences before it, on nothing else: always the source that is furthest behind its share.
/// Sequences have one length, so shares of sequences are shares of tokens (padding of
/// prompt-response documents included), and no source is ever two sequences or more ahead of its
/// share. The seed shifts each source's share by less than one sequence.
class MixtureSchedule {
 public:
  MixtureSchedule(const std::vector<double>& weights, std::uint64_t seed, std::uint32_t stream);

  std::size_t next();
  std::int64_t sequences() const { return sequences_; }  ///< number of calls of next()
  /// As if next() had been called `sequences` times on a new schedule.
  void seek(std::int64_t sequences);

 private:
  std::vector<double> shares_;  ///< sum 1
  std::vector<double> phases_;  ///< in (0, 1)
  std::vector<std::int64_t> counts_;
  std::int64_t sequences_ = 0;
};

/// The opened sources of a stage or of an evaluation; what cannot change while they are read.
struct DataSources {
  DataForm form = DataForm::running_text;
  std::vector<std::shared_ptr<const Corpus>> corpora;
  std::vector<double> weights;

  const Vocabulary& vocabulary() const { return corpora.front()->vocabulary(); }
  /// Corpus::require_unchanged of all. Mixture::next does it itself.
  void require_unchanged() const {
    for (const auto& corpus : corpora) corpus->require_unchanged();
  }
};

struct StageSources {
  std::string where;  ///< "stage NAME"
  const DataSources* sources = nullptr;
};

/// Throws Error when data of different tokenizers come together in a run, or bytes and ids whose
/// tokenizer is not known.
void check_one_tokenizer(const std::vector<StageSources>& stages);

/// Opens every source. Throws Error when they were made by different tokenizers, and as
/// check_vocabulary does for `model`; `where` names the stage.
DataSources open_sources(const DataConfig& config, const ModelVocabulary& model,
                         const std::string& where);

/// Each vocabulary_note of the sources once.
std::vector<std::string> vocabulary_notes(const DataSources& sources, const ModelVocabulary& model);

/// Throws Error naming `where` and the source if one of them gives no target: if every token that
/// is trained on lies beyond the first `sequence_length` tokens of its document.
void check_targets(const DataSources& sources, std::int64_t sequence_length,
                   const std::string& where);

/// How far a Mixture has been read; part of a checkpoint.
struct StreamPosition {
  std::int64_t sequences = 0;       ///< packed so far
  std::vector<DataCursor> cursors;  ///< of the sources, in their order
};

/// Endless stream of packed sequences, each from one source. One source alone gives the batches of
/// its Dataset.
class Mixture {
 public:
  Mixture(const DataSources& sources, std::uint64_t seed, std::uint32_t stream);

  /// Throws RuntimeFailure when a file was written to meanwhile.
  Batch next(std::int64_t sequences, std::int64_t sequence_length);
  /// The source of each sequence of the last batch.
  const std::vector<std::size_t>& chosen() const { return chosen_; }

  StreamPosition position() const;
  /// Goes on from `position`. Throws Error when it does not fit the sources.
  void seek(const StreamPosition& position);

 private:
  std::vector<std::shared_ptr<const Corpus>> corpora_;
  std::vector<Dataset> datasets_;
  MixtureSchedule schedule_;
  std::int32_t padding_;
  std::vector<std::size_t> chosen_;
};

}  // namespace fp8lab
