#include "src/evaluation/held_out.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <vector>

#include "src/evaluation/stop.hpp"
#include "src/io/hash.hpp"
#include "src/objectives/objective.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kEvaluationStream = 0xe7a1;

/// Sequence by sequence: the same bytes however many a micro-batch has.
void add_text(const Batch& batch, Xxh3Stream& text) {
  const auto length = static_cast<std::size_t>(batch.sequence_length);
  const auto add = [&](const auto& column, std::size_t first) {
    text.update(column.data() + first, length * sizeof(column[0]));
  };
  for (std::size_t first = 0; first < batch[kTokens].size(); first += length) {
    add(batch[kTokens], first);
    add(batch[kTargets], first);
    add(batch[kTargetWeights], first);
    add(batch[kDocumentStarts], first);
    add(batch.documents, first);
  }
}

}  // namespace

std::string repetition_note(const DataSources& data, std::int64_t sequences, std::int64_t length,
                            const std::string& what) {
  Mixture mixture(data, 0, kEvaluationStream);
  for (std::int64_t i = 0; i < sequences; ++i) mixture.next(1, length);
  std::string repeated;
  const std::vector<DataCursor> cursors = mixture.position().cursors;
  for (std::size_t i = 0; i < cursors.size(); ++i) {
    const DataCursor& at = cursors[i];
    if (at.epoch == 0 || (at.epoch == 1 && at.document == 0 && at.offset == 0)) continue;
    const bool is_whole = at.document == 0 && at.offset == 0;
    repeated +=
        fmt::format("{}the {} documents of {} {} times{}", repeated.empty() ? "" : ", ",
                    data.corpora[i]->size(), data.corpora[i]->records().front().name,
                    is_whole ? at.epoch : at.epoch + 1, is_whole ? "" : ", the last time in part");
  }
  if (repeated.empty()) return {};
  return fmt::format(
      "{} = {} sequences of {} tokens read {}: the held-out loss and its number of tokens count "
      "them as often",
      what, sequences, length, repeated);
}

HeldOutLosses HeldOutPass::run(const StepContext& context,
                               const std::function<void(const HeldOutToken&)>& visit) const {
  Mixture mixture(data, 0, kEvaluationStream);
  const BatchShape& shape = transformer.shape();
  std::vector<float> losses(static_cast<std::size_t>(shape.tokens()));
  std::int64_t tokens = 0;
  Xxh3Stream text;
  backend.fill_zero(scalars);
  for (std::int64_t done = 0; done < sequences; done += shape.sequences) {
    throw_if_raised(stop);
    if (report) {
      const std::int64_t batches = (sequences + shape.sequences - 1) / shape.sequences;
      report("evaluating", static_cast<std::size_t>(done / shape.sequences),
             static_cast<std::size_t>(batches), "batches");
    }
    const Batch batch = mixture.next(shape.sequences, shape.sequence_length);
    tokens += batch.trained_tokens;
    add_text(batch, text);
    transformer.load(batch);
    transformer.forward(context);
    likelihood().run(transformer, scalars, Leaves::logits,
                     [&](const Transformer::LogitChunk& chunk) {
                       if (look) look(batch, chunk);
                     });
    download_floats(backend, transformer.token_losses(), losses);
    const auto& weights = batch[kTargetWeights];
    const auto& targets = batch[kTargets];
    for (std::size_t i = 0; i < losses.size(); ++i) {
      if (weights[i] == 0.0f) continue;
      const auto sequence = i / static_cast<std::size_t>(shape.sequence_length);
      visit({mixture.chosen()[sequence], batch.documents[i], targets[i],
             static_cast<double>(losses[i])});
    }
  }
  const double total = read_scalar(backend, scalars, StepScalar::kLossSum);
  const double mean =
      tokens > 0 ? total / static_cast<double>(tokens) : std::numeric_limits<double>::quiet_NaN();
  return {mean, text.digest()};
}

}  // namespace fp8lab
