// Computes the losses of held-out tokens in one pass over packed sequences, always the same ones.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "src/data/mixture.hpp"
#include "src/model/part_report.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// A token that has a target.
struct HeldOutToken {
  std::size_t source = 0;     ///< index of the source in the mixture
  std::int64_t document = 0;  ///< index of the document in the source
  std::int32_t target = 0;
  double loss = 0;  ///< in nats, rounded to FP32 by ops::CrossEntropy
};

/// Returns a note that names the sources whose documents are read more than once by a pass over
/// `sequences` packed sequences of `length` tokens, and thus count repeatedly in the loss; empty if
/// there are none. `what` is the setting of the number of sequences: "stages.eval.sequences".
std::string repetition_note(const DataSources& data, std::int64_t sequences, std::int64_t length,
                            const std::string& what);

struct HeldOutLosses {
  double mean = 0;  ///< nats, summed as a training loss is; NaN without a token
  /// XXH3-64 over all sequences: tokens, targets, loss mask and document starts. Equal for passes
  /// over the same text with any micro-batch size.
  std::uint64_t text = 0;
};

struct HeldOutPass {
  Backend& backend;
  Transformer& transformer;
  TensorView scalars;  ///< StepScalar; overwritten
  const DataSources& data;
  std::int64_t sequences = 0;  ///< rounded up to whole micro-batches
  /// Unless null, ends the pass when it is set.
  const std::atomic<bool>* stop = nullptr;
  /// Called with the logits of each chunk of a batch before the next chunk overwrites them.
  std::function<void(const Batch&, const Transformer::LogitChunk&)> look{};
  /// Unless null, called before each batch.
  PartReport report{};

  /// Calls `visit` for every token with a target, in the order of the sequences. Precondition: the
  /// weights are prepared. Throws EvaluationStopped between forward passes.
  HeldOutLosses run(const StepContext& context,
                    const std::function<void(const HeldOutToken&)>& visit) const;
};

}  // namespace fp8lab
