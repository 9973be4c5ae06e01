#include "src/data/dataset.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/data/random.hpp"

namespace fp8lab {

Dataset::Dataset(std::shared_ptr<const Corpus> corpus, DataForm form, std::uint64_t seed,
                 std::uint32_t stream)
    : corpus_(std::move(corpus)), form_(form), seed_(seed), stream_(stream) {
  if (corpus_->size() > UINT32_MAX) throw Error("a data source has at most 2^32 documents");
  shuffle();
}

void Dataset::shuffle() {
  order_.resize(static_cast<std::size_t>(corpus_->size()));
  std::iota(order_.begin(), order_.end(), 0u);
  RandomSequence random(seed_ ^ (static_cast<std::uint64_t>(stream_) << 40),
                        static_cast<std::uint32_t>(cursor_.epoch));
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[random.below(static_cast<std::uint32_t>(i))]);
  }
}

void Dataset::advance_document() {
  cursor_.offset = 0;
  if (++cursor_.document == corpus_->size()) {
    cursor_.document = 0;
    ++cursor_.epoch;
    shuffle();
  }
}

void Dataset::seek(const DataCursor& cursor) {
  const bool known = cursor.epoch >= 0 && cursor.document >= 0 && cursor.offset >= 0 &&
                     cursor.document < corpus_->size();
  if (known) {
    cursor_ = cursor;
    shuffle();
  }
  if (!known || cursor.offset >= std::max<std::int64_t>(current().size - 1, 1)) {
    throw InputError({.where = "checkpoint position does not fit the data",
                      .reason = "was the data source changed?"});
  }
}

DocumentView Dataset::current() const {
  return corpus_->document(order_[static_cast<std::size_t>(cursor_.document)]);
}

void Dataset::fill_values(Batch& batch, std::size_t first, std::size_t count) const {
  const auto index = order_[static_cast<std::size_t>(cursor_.document)];
  const std::vector<float>& weights = batch[kTargetWeights];
  for (const ColumnSpec& column : batch.specs()) {
    if (column.record_key.empty()) continue;
    const float value = corpus_->value(index, column);
    std::vector<float>& values = batch[Column<float>(column.name)];
    for (std::size_t i = first; i < first + count; ++i) {
      values[i] = weights[i] != 0.0f ? value : 0.0f;
    }
  }
}

void Dataset::fill_sequence(Batch& batch, std::int64_t sequence) {
  const std::int64_t length = batch.sequence_length;
  const auto base = static_cast<std::size_t>(sequence * length);
  std::int64_t filled = 0;
  auto &tokens = batch[kTokens], &targets = batch[kTargets];
  auto &positions = batch[kPositions], &starts = batch[kDocumentStarts];
  std::vector<float>& weights = batch[kTargetWeights];
  batch.documents.resize(tokens.size(), -1);
  while (filled < length) {
    const auto index = order_[static_cast<std::size_t>(cursor_.document)];
    const DocumentView document = current();
    // The last token has no successor, so it is never an input.
    const std::int64_t inputs = document.size - 1;
    const std::int64_t rest = inputs - cursor_.offset;
    if (rest < 0) {
      throw RuntimeFailure(
          fmt::format("document {} has become shorter than what was read of it: "
                      "its file was written to while it was in use; put it back",
                      cursor_.document));
    }
    if (form_ == DataForm::prompt_response && rest > length - filled && filled > 0) break;
    const std::int64_t count = std::min(rest, length - filled);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t from = cursor_.offset + i;
      const std::size_t to = base + static_cast<std::size_t>(filled + i);
      const bool trained = document.trained(from + 1);
      tokens[to] = document.token(from);
      targets[to] = document.token(from + 1);
      weights[to] = trained ? 1.0f : 0.0f;
      positions[to] = static_cast<std::int32_t>(i);
      starts[to] = static_cast<std::int32_t>(filled);
      batch.documents[to] = index;
      batch.trained_tokens += trained ? 1 : 0;
    }
    fill_values(batch, base + static_cast<std::size_t>(filled), static_cast<std::size_t>(count));
    filled += count;
    cursor_.offset += count;
    if (cursor_.offset >= inputs || form_ == DataForm::prompt_response) advance_document();
  }
  for (std::int64_t i = filled; i < length; ++i) {
    const std::size_t to = base + static_cast<std::size_t>(i);
    positions[to] = static_cast<std::int32_t>(i - filled);
    starts[to] = static_cast<std::int32_t>(filled);
  }
}

Batch Dataset::next(std::int64_t sequences, std::int64_t sequence_length) {
  Batch batch = Batch::padded(sequences, sequence_length, corpus_->vocabulary().padding());
  for (std::int64_t s = 0; s < sequences; ++s) fill_sequence(batch, s);
  return batch;
}

}  // namespace fp8lab
