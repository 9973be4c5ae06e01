// The activations of a checkpoint that stand out: massive ones, channels, attention sinks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/assessment/assessed_model.hpp"
#include "src/data/batch.hpp"

namespace fp8lab {

/// The input x (tokens, channels) of one linear layer.
struct InputOutliers {
  std::size_t linear = 0;    ///< in the order of Declaration::linears()
  double amax = 0;           ///< largest magnitude
  double median = 0;         ///< of all magnitudes
  std::int64_t token = 0;    ///< row of the amax
  std::int64_t channel = 0;  ///< column of the amax
  /// Largest over median channel amax, as OperandStatistics::channel_outlier_ratio.
  double channel_ratio = 0;
  /// The same by tokens: largest over median amax of a row. Far above the channels' ratio, a few
  /// tokens carry what is massive.
  double token_ratio = 0;
};

/// What the queries of one layer attend to.
struct AttentionSink {
  std::int64_t token = 0;  ///< the key with the largest share
  /// Mean over heads, and over the queries that see this key and at least one other, of its
  /// weight. 1: they look at nothing else.
  double share = 0;
};

struct Outliers {
  std::vector<InputOutliers> inputs;
  std::vector<AttentionSink> sinks;  ///< by layer
};

/// In the first sequence of `batch`, under `recipe`, which multiplies activations as they are
/// stored (bf16). Attention weights are computed on the host in double precision, from queries and
/// keys as attention reads them.
Outliers find_outliers(AssessedModel& model, const Recipe& recipe, const Batch& batch);

}  // namespace fp8lab
