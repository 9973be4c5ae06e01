// Losses by document, on the same tokens for every recipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/assessment/assessed_model.hpp"
#include "src/data/mixture.hpp"

namespace fp8lab {

/// A document with predicted tokens. Tokens of one document depend on each other, so the document
/// is the unit of resampling for intervals.
struct AssessedDocument {
  std::size_t source = 0;   ///< index of the source in the data
  std::int64_t index = 0;   ///< index of the document in its source
  std::int64_t tokens = 0;  ///< number of tokens with a target
  bool operator==(const AssessedDocument&) const = default;
};

struct DocumentLosses {
  std::vector<AssessedDocument> documents;  ///< in the order of the data
  std::vector<double> sums;                 ///< nats, over the tokens of each document
  double mean = 0;                          ///< nats per token, with the bits of `fp8lab eval`

  std::int64_t tokens() const;
  /// Returns the mean over all tokens in nats, computed in double precision.
  double loss() const;
};

/// Computes the losses of the first `sequences` packed sequences of `data` with `transformer`.
DocumentLosses document_losses(AssessedModel& model, Transformer& transformer,
                               const DataSources& data, std::int64_t sequences);

/// Returns the number of tokens of `corpus` that a model reads to predict the next one.
std::int64_t inputs_of(const Corpus& corpus);

/// Returns the length of sequences for `data`: `length`, or the inputs of the shortest source if
/// these do not fill a sequence.
std::int64_t length_filled_by(const DataSources& data, std::int64_t length);

/// Returns the number of sequences of `length` tokens that `data` fill without reading a document
/// twice; at least 1.
std::int64_t sequences_of(const DataSources& data, std::int64_t length);

}  // namespace fp8lab
