// What a stage minimizes: the columns of a batch that it reads, its operations on the logits, and
// what it logs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/batch.hpp"
#include "src/io/hdf5/run_log.hpp"
#include "src/model/transformer.hpp"

namespace fp8lab {

/// What an objective leaves in the logits buffer.
enum class Leaves : std::uint8_t {
  logits,
  gradient,  ///< gradient of the mean over all trained tokens of the step (scalars[kInverseTokens])
};

class Objective {
 public:
  virtual ~Objective() = default;

  /// The columns of the batch that run() reads.
  virtual std::vector<ColumnSpec> columns() const = 0;
  /// The columns of /metrics that it adds to those of every run, ordered by name.
  virtual std::vector<MetricColumn> metrics() const { return {}; }
  /// Their values for a step over `batches`, which are its micro-batches, computed on the host in
  /// double precision; NaN where no token is trained on.
  virtual std::vector<double> measure(std::span<const Batch> batches) const;

  /// Those of columns() that not every batch has: batches and BatchShape are made with them.
  std::vector<ColumnSpec> own_columns() const;

  /// Adds the loss of the loaded batch, in nats, to scalars[kLossSum], the one scalar of a step
  /// that an objective changes. Precondition: forward() has run, and columns() are loaded.
  /// token_losses() are its terms, added in the same order however the logits are chunked.
  /// backward() may follow only with Leaves::gradient. `look` is called with each chunk of logits
  /// before the next one overwrites them.
  void run(Transformer& model, const TensorView& scalars, Leaves leaves,
           const std::function<void(const Transformer::LogitChunk&)>& look = {}) const;

 protected:
  /// What the operations of a chunk write.
  struct Results {
    TensorView scalars;
    TensorView gradient;  ///< (chunk.logits.rows, V), in place of the logits; empty: not wanted
    TensorView summed;    ///< (1, T) f32, the token losses to add up; empty until the last chunk
  };
  virtual void run_chunk(Transformer& model, const Transformer::LogitChunk& chunk,
                         const Results& results) const = 0;
};

/// The objective of a stage.
std::unique_ptr<Objective> make_objective(const ObjectiveConfig& config);

/// Negative log-likelihood of the targets: what evaluations and the losses of sessions measure,
/// whatever is trained.
const Objective& likelihood();

/// Returns the columns that the objectives of all stages add to /metrics, ordered by name.
std::vector<MetricColumn> metrics_of(const RunConfig& config);

}  // namespace fp8lab
