#include "src/data/dataset.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "emulation/api/error.hpp"
#include "src/data/random.hpp"
#include "src/data/tokenizer.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {

Dataset::Dataset(std::vector<Document> documents, DataForm form, std::uint64_t seed,
                 std::uint32_t stream)
    : documents_(std::move(documents)), form_(form), seed_(seed), stream_(stream) {
  if (documents_.empty()) throw Error("a data source needs at least one document");
  shuffle();
}

void Dataset::shuffle() {
  order_.resize(documents_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  RandomSequence random(seed_ ^ (static_cast<std::uint64_t>(stream_) << 40),
                        static_cast<std::uint32_t>(cursor_.epoch));
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[random.below(static_cast<std::uint32_t>(i))]);
  }
}

void Dataset::advance_document() {
  cursor_.offset = 0;
  if (++cursor_.document == size()) {
    cursor_.document = 0;
    ++cursor_.epoch;
    shuffle();
  }
}

void Dataset::seek(const DataCursor& cursor) {
  if (cursor.document < 0 || cursor.document >= size() || cursor.epoch < 0 || cursor.offset < 0) {
    throw Error("checkpoint position does not fit the data: was the data source changed?");
  }
  cursor_ = cursor;
  shuffle();
}

void Dataset::fill_sequence(Batch& batch, std::int64_t sequence) {
  const std::int64_t length = batch.sequence_length;
  const auto base = static_cast<std::size_t>(sequence * length);
  std::int64_t filled = 0;
  while (filled < length) {
    const Document& document =
        documents_[order_[static_cast<std::size_t>(cursor_.document)]];
    const auto size = static_cast<std::int64_t>(document.tokens.size());
    // The last token has no successor, so it is never an input.
    const std::int64_t inputs = size - 1;
    const std::int64_t rest = inputs - cursor_.offset;
    if (form_ == DataForm::prompt_response && rest > length - filled && filled > 0) break;
    const std::int64_t count = std::min(rest, length - filled);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto from = static_cast<std::size_t>(cursor_.offset + i);
      const std::size_t to = base + static_cast<std::size_t>(filled + i);
      const bool trained = static_cast<std::int64_t>(from) + 1 >= document.prompt_length;
      batch.tokens[to] = document.tokens[from];
      batch.targets[to] = document.tokens[from + 1];
      batch.weights[to] = trained ? 1.0f : 0.0f;
      batch.positions[to] = static_cast<std::int32_t>(i);
      batch.document_start[to] = static_cast<std::int32_t>(filled);
      batch.trained_tokens += trained ? 1 : 0;
    }
    filled += count;
    cursor_.offset += count;
    if (cursor_.offset >= inputs || form_ == DataForm::prompt_response) advance_document();
  }
  for (std::int64_t i = filled; i < length; ++i) {
    const std::size_t to = base + static_cast<std::size_t>(i);
    batch.positions[to] = static_cast<std::int32_t>(i - filled);
    batch.document_start[to] = static_cast<std::int32_t>(filled);
  }
}

Batch Dataset::next(std::int64_t sequences, std::int64_t sequence_length) {
  Batch batch;
  batch.sequences = sequences;
  batch.sequence_length = sequence_length;
  const auto count = static_cast<std::size_t>(sequences * sequence_length);
  batch.tokens.assign(count, ByteTokenizer::kPadding);
  batch.targets.assign(count, ByteTokenizer::kPadding);
  batch.weights.assign(count, 0.0f);
  batch.positions.assign(count, 0);
  batch.document_start.assign(count, 0);
  for (std::int64_t s = 0; s < sequences; ++s) fill_sequence(batch, s);
  return batch;
}

std::uint64_t Dataset::hash() const {
  std::vector<std::int32_t> stream;
  for (const Document& document : documents_) {
    stream.push_back(static_cast<std::int32_t>(document.prompt_length));
    stream.insert(stream.end(), document.tokens.begin(), document.tokens.end());
  }
  return xxh3(stream.data(), stream.size() * sizeof(std::int32_t));
}

}  // namespace fp8lab
