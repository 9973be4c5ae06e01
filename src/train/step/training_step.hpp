// One training step: the one place where forward pass, loss, backward pass and update follow each
// other, for runs, for Python and for validation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "emulation/backend.hpp"
#include "src/data/batch.hpp"
#include "src/model/parameters.hpp"
#include "src/model/transformer.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/step/shard_sums.hpp"
#include "src/train/step/update_errors.hpp"

namespace fp8lab {

/// Sets the learning rate and 1 / trained_tokens (0 without any), and clears loss and norm.
void begin_step(Backend& backend, const TensorView& scalars, double learning_rate,
                std::int64_t trained_tokens);

/// What differs between one step and the next beside the tokens, in backend memory.
struct StepBlock {
  explicit StepBlock(Backend& backend);

  TensorView scalars;      ///< StepScalar
  TensorView step_number;  ///< (1, 1) i32, part of random keys
};

/// What a step has left in backend memory, on the host.
struct StepResults {
  std::array<double, StepScalar::kCount> scalars{};
  std::uint64_t weight_hash = 0;  ///< 0 unless asked for
  std::vector<OperandStatistics>
      statistics;  ///< of each slot of each layer; empty unless asked for

  double scalar(std::int64_t index) const { return scalars[static_cast<std::size_t>(index)]; }
  double mean_loss() const {
    return scalar(StepScalar::kLossSum) * scalar(StepScalar::kInverseTokens);
  }
};

/// What a step works on; all of it outlives the step. Between the operations of a step nothing
/// waits for the backend.
struct TrainingStep {
  Backend& backend;
  Parameters& parameters;
  Transformer& transformer;
  const StepBlock& block;
  const Objective& objective;
  ShardSums* shards = nullptr;  ///< null: one shard, on one rank

  /// Computes the gradients of the mean loss over all trained tokens of `batches`, the
  /// micro-batches of the whole step in order, each of the transformer's shape; block.scalars hold
  /// the sum of their losses. A rank computes its own shards and then adds over ranks. If `context`
  /// says so, operands are measured in the step's first micro-batch, that is on the first rank.
  /// Returns the number of trained tokens of the whole step.
  std::int64_t accumulate(StepContext context, std::span<const Batch> batches,
                          double learning_rate) const;
  /// The same once more, after begin_update(), which has left `results`; with operands measured in
  /// every micro-batch. All tensors have the same bits afterwards, but the records of measurements.
  void accumulate_again(const StepContext& context, std::span<const Batch> batches,
                        const StepResults& results) const;

  /// Rounds gradients to what they are stored as; begin_update() does. `seed` is that of
  /// stochastically rounded states.
  void round_gradients(std::uint64_t seed) const;
  /// Gradient norm over all parameters and what depends on it, in block.scalars. Without trained
  /// tokens there is no gradient.
  void begin_update(const UpdateSpec& spec, std::uint64_t seed, std::int64_t trained_tokens) const;
  /// Clipping, the update; then delayed scales take the amaxes of the step. Without trained tokens
  /// the weights stay: moments and weight decay alone would move them. `errors`, where there is
  /// one, measures the update, which then waits for downloads.
  void end_update(const UpdateSpec& spec, std::uint64_t seed, std::int64_t trained_tokens,
                  UpdateErrors* errors = nullptr) const;
  /// The two, one after the other.
  void update(const UpdateSpec& spec, std::uint64_t seed, std::int64_t trained_tokens,
              UpdateErrors* errors = nullptr) const;

  /// Waits, once, for the end of what has been enqueued.
  StepResults results(bool weight_hash = false, bool statistics = false) const;

 private:
  /// In which micro-batches, and chunks of their loss, operands are measured.
  enum class Measured : std::uint8_t { first, every };

  void take_batches(StepContext context, std::span<const Batch> batches, Measured measured) const;
  /// One micro-batch; `shard` is its shard, counted within the rank.
  void take_batch(const StepContext& context, const Batch& batch, std::int64_t shard,
                  bool ends_shard) const;
  /// Raises the amaxes of delayed scales to their maximum over ranks.
  void share_amaxes() const;
  void update_weights(const UpdateSpec& spec, const RandomKey& key, UpdateErrors* errors) const;
  void update_parameter(const Parameter& parameter, const UpdateSpec& spec, const RandomKey& key,
                        UpdateErrors* errors) const;
  /// Muon's update, from the momentum of the step as one row.
  void update_parts(const Parameter& parameter, const UpdateSpec& spec, float decay_mask,
                    const TensorView& momentum) const;
  RandomKey key_of(std::uint64_t seed) const;
  /// Enqueues a part of the step, which the transformer's backend may have kept (without `part`:
  /// has not) from an earlier step with these settings.
  void repeat(std::optional<std::size_t> part, const std::string& settings,
              const std::function<void()>& enqueue) const;
};

}  // namespace fp8lab
