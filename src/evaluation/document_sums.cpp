#include "src/evaluation/document_sums.hpp"

namespace fp8lab {

void DocumentSums::add(const HeldOutToken& token) {
  const bool goes_on = last_ < documents_.size() && documents_[last_].source == token.source &&
                       documents_[last_].document == token.document;
  if (!goes_on) {
    const auto [place, is_new] =
        places_.try_emplace({token.source, token.document}, documents_.size());
    if (is_new) documents_.push_back({token.source, token.document, 0, 0.0});
    last_ = place->second;
  }
  ++documents_[last_].tokens;
  documents_[last_].nats += token.loss;
}

}  // namespace fp8lab
