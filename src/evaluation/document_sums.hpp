// Held-out losses by document: documents are the independent samples of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "src/evaluation/held_out.hpp"

namespace fp8lab {

/// The loss of one document: its tokens with a target, and the sum of their losses.
struct DocumentLoss {
  std::size_t source = 0;     ///< of the data
  std::int64_t document = 0;  ///< of the source
  std::int64_t tokens = 0;
  double nats = 0;  ///< sum of their losses in double precision, in the order of the sequences
  bool operator==(const DocumentLoss&) const = default;
};

/// Sums the token losses of a pass by document. One thread adds them in the order of the sequences,
/// so that the bits do not depend on the number of threads.
class DocumentSums {
 public:
  void add(const HeldOutToken& token);
  /// In the order in which the data were read.
  const std::vector<DocumentLoss>& documents() const { return documents_; }

 private:
  std::vector<DocumentLoss> documents_;
  std::map<std::pair<std::size_t, std::int64_t>, std::size_t> places_;
  std::size_t last_ = 0;  ///< place of the token before: tokens of a document follow each other
};

}  // namespace fp8lab
