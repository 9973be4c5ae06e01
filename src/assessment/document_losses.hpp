// Losses by document: what one recipe's numerics make of the same tokens as another's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/assessment/assessed_model.hpp"
#include "src/data/mixture.hpp"

namespace fp8lab {

/// A document of which tokens were predicted. Tokens of one document depend on each other: it is
/// the unit that intervals are made of.
struct AssessedDocument {
  std::size_t source = 0;   ///< of the data
  std::int64_t index = 0;   ///< in its source
  std::int64_t tokens = 0;  ///< with a target
  bool operator==(const AssessedDocument&) const = default;
};

struct DocumentLosses {
  std::vector<AssessedDocument> documents;  ///< in the order in which the data were read
  std::vector<double> sums;                 ///< nats, over the tokens of each document
  double mean = 0;                          ///< nats a token, with the bits of `fp8lab eval`

  std::int64_t tokens() const;
  /// Sum over all tokens divided by their number, in double precision.
  double loss() const;
};

/// Of `sequences` packed sequences under `transformer`, always the same ones.
DocumentLosses document_losses(AssessedModel& model, Transformer& transformer,
                               const DataSources& data, std::int64_t sequences);

/// Sequences of `length` tokens that `data` fill without reading a document twice; at least 1.
std::int64_t sequences_of(const DataSources& data, std::int64_t length);

}  // namespace fp8lab
