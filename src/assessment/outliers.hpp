// Finds massive activations, outlier channels and attention sinks of a checkpoint.
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
  /// Largest channel amax divided by the median one, as OperandStatistics::channel_outlier_ratio.
  double channel_ratio = 0;
  /// Largest row amax divided by the median one. If it is far above channel_ratio, the massive
  /// activations are those of a few tokens.
  double token_ratio = 0;
};

/// The key that the queries of one layer attend to most.
struct AttentionSink {
  std::int64_t token = 0;  ///< the key with the largest share
  /// Mean softmax weight of the key over heads and over the queries that see it and at least one
  /// other key. 1: these queries attend to nothing else.
  double share = 0;
};

struct Outliers {
  std::vector<InputOutliers> inputs;
  std::vector<AttentionSink> sinks;  ///< one per layer
};

/// Examines the first sequence of `batch` under `recipe`. Precondition: the recipe multiplies
/// activations as they are stored (bf16). Attention weights are computed on the host in double
/// precision from the queries and keys that attention reads.
Outliers find_outliers(AssessedModel& model, const Recipe& recipe, const Batch& batch);

}  // namespace fp8lab
