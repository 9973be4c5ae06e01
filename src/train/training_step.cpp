#include "src/train/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "src/objectives/cross_entropy.hpp"

namespace fp8lab {

namespace {

/// Parts of a step that repeat from step to step: the update, and each of the first micro-batches,
/// with and without statistics. More micro-batches would take more memory than they save time.
constexpr std::size_t kUpdate = 0, kRepeatedMicroBatches = 8;

std::optional<std::size_t> part_of(const StepContext& context) {
  if (context.micro_batch >= kRepeatedMicroBatches) return std::nullopt;
  return 1 + 2 * std::size_t{context.micro_batch} + (context.log_statistics ? 1 : 0);
}

}  // namespace

StepBlock::StepBlock(Backend& backend)
    : scalars(backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount)),
      step_number(backend.allocate(DType::i32, 1, 1)) {}

void begin_step(Backend& backend, const TensorView& scalars, double learning_rate,
                std::int64_t trained_tokens) {
  const double share = trained_tokens > 0 ? 1.0 / static_cast<double>(trained_tokens) : 0.0;
  const std::array<double, 4> values = {learning_rate, share, 0.0, 0.0};
  const TensorView view = scalars.columns(StepScalar::kLearningRate, 4);
  if (view.dtype == DType::f64) {
    backend.upload(view, values.data());
    return;
  }
  std::array<float, 4> singles{};
  for (std::size_t i = 0; i < values.size(); ++i) singles[i] = static_cast<float>(values[i]);
  backend.upload(view, singles.data());
}

std::int64_t TrainingStep::accumulate(StepContext context, std::span<const Batch> batches,
                                      double learning_rate) const {
  std::int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.trained_tokens;
  begin_step(backend, block.scalars, learning_rate, tokens);
  const auto number = static_cast<std::int32_t>(context.step);
  backend.upload(block.step_number, &number);
  context.step = 0;
  context.step_counter = static_cast<const std::uint32_t*>(block.step_number.data);
  for (const Batch& batch : batches) {
    transformer.load(batch);
    repeat(part_of(context), fmt::format("{}", context.seed), [&] {
      if (context.micro_batch == 0) {
        parameters.zero_gradients();
        transformer.prepare_weights(context);
      }
      transformer.forward(context);
      objectives::cross_entropy(transformer, block.scalars, objectives::Leaves::gradient);
      transformer.backward(context);
    });
    ++context.micro_batch;
    context.log_statistics = false;  // the first micro-batch speaks for the step
  }
  return tokens;
}

void TrainingStep::update(const AdamWSpec& spec, std::int64_t trained_tokens) const {
  if (trained_tokens > 0) {
    const std::string settings = fmt::format("{} {} {} {} {}", spec.beta1, spec.beta2, spec.epsilon,
                                             spec.weight_decay, spec.clip_norm);
    repeat(kUpdate, settings, [&] { update_weights(spec); });
  }
  transformer.update_delayed_scales();
  transformer.end_step();
}

void TrainingStep::update_weights(const AdamWSpec& spec) const {
  for (const Parameter& parameter : parameters.all()) {
    backend.run(ops::AccumulateSquareSum{parameter.gradient(), block.scalars});
  }
  backend.run(ops::BeginUpdate{spec, block.scalars});
  for (const Parameter& parameter : parameters.all()) {
    backend.run(ops::AdamW{spec, block.scalars, parameter.declaration.weight_decay ? 1.0f : 0.0f,
                           parameter.tensors});
  }
}

void TrainingStep::repeat(std::optional<std::size_t> part, const std::string& settings,
                          const std::function<void()>& enqueue) const {
  if (!part) return enqueue();
  // Gradients and weights lie where the transformer's parameters are; the scalars may not.
  transformer.repeat(*part, fmt::format("{} {}", block.scalars.data, settings), enqueue);
}

StepResults TrainingStep::results(bool weight_hash, bool statistics) const {
  StepResults results;
  std::array<float, StepScalar::kCount> singles{};
  const bool wide = block.scalars.dtype == DType::f64;
  void* const scalars = wide ? static_cast<void*>(results.scalars.data()) : singles.data();
  std::vector<Download> downloads = {{scalars, block.scalars}};
  if (weight_hash) downloads.push_back({&results.weight_hash, parameters.enqueue_hash()});
  if (statistics) {
    const auto& linears = transformer.linears();
    results.statistics.resize(linears.size() * std::size(kSlots));
    for (std::size_t i = 0; i < linears.size(); ++i) {
      downloads.push_back({&results.statistics[i * std::size(kSlots)], linears[i]->statistics()});
    }
  }
  backend.download_all(downloads);
  if (!wide) std::copy(singles.begin(), singles.end(), results.scalars.begin());
  return results;
}

}  // namespace fp8lab
