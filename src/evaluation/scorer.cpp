#include "src/evaluation/scorer.hpp"

#include <fmt/format.h>

#include "emulation/base/input_error.hpp"
#include "src/objectives/objective.hpp"

namespace fp8lab {
namespace {

/// Returns the number of input tokens of a text: its last token has no successor.
std::int64_t input_count(const ScoredText& text) {
  return static_cast<std::int64_t>(text.tokens.size()) - 1;
}

/// Writes tokens [0, count) of a document at position `start` of the sequence that begins at token
/// `base`; sets targets for a text.
void place(const ScoredText& text, std::int64_t base, std::int64_t start, Batch& batch) {
  for (std::int64_t i = 0; i < input_count(text); ++i) {
    const auto to = static_cast<std::size_t>(base + start + i);
    const auto from = static_cast<std::size_t>(i);
    const bool scored = i + 1 >= text.first;
    batch[kTokens][to] = text.tokens[from];
    batch[kTargets][to] = text.tokens[from + 1];
    batch[kTargetWeights][to] = scored ? 1.0f : 0.0f;
    batch.trained_tokens += scored ? 1 : 0;
  }
}

/// Marks tokens [first, last) of a sequence as one document.
void mark_document(std::int64_t base, std::int64_t first, std::int64_t last, Batch& batch) {
  for (std::int64_t i = first; i < last; ++i) {
    const auto to = static_cast<std::size_t>(base + i);
    batch[kPositions][to] = static_cast<std::int32_t>(i - first);
    batch[kDocumentStarts][to] = static_cast<std::int32_t>(first);
  }
}

}  // namespace

Scorer::Scorer(Backend& backend, Transformer& transformer, std::int32_t padding,
               const std::atomic<bool>* stop)
    : backend_(backend),
      transformer_(transformer),
      padding_(padding),
      scalars_(backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount)),
      stop_(stop) {}

std::vector<Scorer::Place> Scorer::pack(const std::vector<ScoredText>& texts, std::size_t next,
                                        Packing packing, Batch& batch) const {
  const std::int64_t tile = packing == Packing::tiles ? transformer_.shape().attention.kv_tile : 1;
  std::vector<Place> places;
  for (std::int64_t s = 0; s < batch.sequences; ++s) {
    const std::int64_t base = s * batch.sequence_length;
    std::int64_t start = 0;
    while (next < texts.size() && start + input_count(texts[next]) <= batch.sequence_length) {
      const std::int64_t end = start + input_count(texts[next]);
      const std::int64_t aligned = (end + tile - 1) / tile * tile;
      place(texts[next], base, start, batch);
      // Padding up to the tile attends to the text, but the text does not attend to it.
      mark_document(base, start, std::min(aligned, batch.sequence_length), batch);
      places.push_back({next++, base + start});
      start = aligned;
    }
    if (start < batch.sequence_length) mark_document(base, start, batch.sequence_length, batch);
  }
  return places;
}

std::vector<std::vector<double>> Scorer::score(const StepContext& context,
                                               const std::vector<ScoredText>& texts,
                                               Packing packing, const PartReport& report) {
  const BatchShape& shape = transformer_.shape();
  for (const ScoredText& text : texts) {
    if (text.first >= 1 && text.first <= input_count(text) &&
        input_count(text) <= shape.sequence_length) {
      continue;
    }
    throw InputError(
        {.reason = fmt::format("a text of {} tokens, scored from token {} on, does not fit a "
                               "sequence of {}, or nothing of it is scored",
                               text.tokens.size(), text.first, shape.sequence_length)});
  }
  std::vector<std::vector<double>> results(texts.size());
  std::vector<float> losses(static_cast<std::size_t>(shape.tokens()));
  for (std::size_t next = 0; next < texts.size();) {
    throw_if_raised(stop_);
    if (report) report("scoring whole sequences", next, texts.size(), "texts");
    Batch batch = Batch::padded(shape.sequences, shape.sequence_length, padding_);
    const std::vector<Place> places = pack(texts, next, packing, batch);
    transformer_.load(batch);
    transformer_.forward(context);
    likelihood().run(transformer_, scalars_, Leaves::logits);
    download_floats(backend_, transformer_.token_losses(), losses);
    for (const Place& at : places) {
      const ScoredText& text = texts[at.text];
      for (std::int64_t i = text.first; i <= input_count(text); ++i) {
        const float loss = losses[static_cast<std::size_t>(at.token + i - 1)];
        results[at.text].push_back(-static_cast<double>(loss));
      }
    }
    next += places.size();
  }
  return results;
}

}  // namespace fp8lab
