#include "src/assessment/document_losses.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/evaluation/document_sums.hpp"

namespace fp8lab {

std::int64_t DocumentLosses::tokens() const {
  return std::accumulate(
      documents.begin(), documents.end(), std::int64_t{0},
      [](std::int64_t sum, const AssessedDocument& document) { return sum + document.tokens; });
}

double DocumentLosses::loss() const {
  return std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(tokens());
}

DocumentLosses document_losses(AssessedModel& model, Transformer& transformer,
                               const DataSources& data, std::int64_t sequences) {
  DocumentLosses result;
  Backend& backend = model.backend();
  const std::size_t mark = backend.memory_mark();
  const HeldOutPass pass{backend, transformer,
                         backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount), data,
                         sequences};
  DocumentSums sums;
  result.mean = pass.run(model.context(), [&](const HeldOutToken& token) { sums.add(token); }).mean;
  for (const DocumentLoss& one : sums.documents()) {
    result.documents.push_back({one.source, one.document, one.tokens});
    result.sums.push_back(one.nats);
  }
  transformer.discard_amaxes();
  backend.release_to(mark);
  return result;
}

std::int64_t inputs_of(const Corpus& corpus) {
  std::int64_t inputs = 0;
  for (std::int64_t d = 0; d < corpus.size(); ++d) inputs += corpus.document(d).size - 1;
  return inputs;
}

std::int64_t length_filled_by(const DataSources& data, std::int64_t length) {
  for (const auto& corpus : data.corpora) length = std::min(length, inputs_of(*corpus));
  return std::max<std::int64_t>(length, 1);
}

std::int64_t sequences_of(const DataSources& data, std::int64_t length) {
  // The mixture draws sequences from sources by their weights: the first exhausted source limits.
  double total = 0;
  for (const double weight : data.weights) total += weight;
  auto most = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < data.corpora.size(); ++i) {
    const auto filled = static_cast<double>(inputs_of(*data.corpora[i]) / length);
    most = std::min(most, filled * total / data.weights[i]);
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(most));
}

}  // namespace fp8lab
