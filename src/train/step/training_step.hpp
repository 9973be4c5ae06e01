// One training step: forward pass, loss, backward pass and update. Runs, Python and validation all
// use this code.
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
#include "src/model/transformer.hpp"
#include "src/model/weights/parameters.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/step/shard_sums.hpp"
#include "src/train/step/update_errors.hpp"

namespace fp8lab {

/// Label::tensor of the upload of StepBlock::scalars.
inline constexpr const char* kStepScalars = "step scalars";

/// Sets the learning rate and 1 / trained_tokens (0 if there are none), and clears loss and norm.
void begin_step(Backend& backend, const TensorView& scalars, double learning_rate,
                std::int64_t trained_tokens);

/// The numbers in backend memory that differ between steps, besides the tokens.
struct StepBlock {
  explicit StepBlock(Backend& backend);

  TensorView scalars;      ///< StepScalar
  TensorView step_number;  ///< (1, 1) i32, part of random keys
};

/// Results of a step, downloaded to the host.
struct StepResults {
  std::array<double, StepScalar::kCount> scalars{};
  std::uint64_t weight_hash = 0;  ///< 0 unless requested
  /// Of each slot of each linear layer, then of Transformer::activation_operands() and
  /// attention_operands(); empty unless requested.
  std::vector<OperandStatistics> statistics;

  double scalar(std::int64_t index) const { return scalars[static_cast<std::size_t>(index)]; }
  double mean_loss() const {
    return scalar(StepScalar::kLossSum) * scalar(StepScalar::kInverseTokens);
  }
};

/// The objects that a step uses; they must outlive it. The host does not wait for the backend
/// between the operations of a step.
struct TrainingStep {
  Backend& backend;
  Parameters& parameters;
  Transformer& transformer;
  const StepBlock& block;
  const Objective& objective;
  ShardSums* shards = nullptr;  ///< null: one shard, on one rank

  /// Computes the gradients of the mean loss over all trained tokens of `batches`, the
  /// micro-batches of the whole step in order, each of the transformer's shape; block.scalars
  /// receives the sum of their losses. A rank computes its own shards; then gradients and loss are
  /// added over ranks. If `context` requests statistics, operands are measured in the step's first
  /// micro-batch, which is on the first rank. Returns the number of trained tokens of the whole
  /// step.
  std::int64_t accumulate(StepContext context, std::span<const Batch> batches,
                          double learning_rate) const;
  /// Repeats accumulate() after begin_update(), whose results are `results`, and measures operands
  /// in every micro-batch. Only the measurements differ afterwards; all other tensors have the same
  /// bits.
  void accumulate_again(const StepContext& context, std::span<const Batch> batches,
                        const StepResults& results) const;

  /// Rounds gradients to their storage type; begin_update() calls it. `seed` is the seed of
  /// stochastic rounding.
  void round_gradients(std::uint64_t seed) const;
  /// Computes the gradient norm over all parameters and the clipping factor, in block.scalars. Does
  /// nothing without trained tokens, since there is no gradient.
  void begin_update(const UpdateSpec& spec, std::uint64_t seed, std::int64_t trained_tokens) const;
  /// Clips, updates, then adds the amaxes of the step to delayed scales. Without trained tokens the
  /// weights stay as they are: moments and weight decay alone would change them. `errors`, if
  /// given, measures the update, which then waits for downloads.
  void end_update(const UpdateSpec& spec, std::uint64_t seed, std::int64_t trained_tokens,
                  UpdateErrors* errors = nullptr) const;
  /// Runs begin_update() and end_update().
  void update(const UpdateSpec& spec, std::uint64_t seed, std::int64_t trained_tokens,
              UpdateErrors* errors = nullptr) const;

  /// Waits for all enqueued operations and downloads the results.
  StepResults results(bool weight_hash = false, bool statistics = false) const;

 private:
  /// The micro-batches, and chunks of their loss, in which operands are measured.
  enum class Measured : std::uint8_t { first, every };

  void take_batches(StepContext context, std::span<const Batch> batches, Measured measured) const;
  /// Runs one micro-batch; `shard` is its shard, counted within the rank.
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
  /// Enqueues a part of the step. The backend may replay the graph of an earlier step with the same
  /// settings; without `part` it never does.
  void repeat(std::optional<std::size_t> part, const std::string& settings,
              const std::function<void()>& enqueue) const;
};

}  // namespace fp8lab
