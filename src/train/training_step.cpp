#include "src/train/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "src/objectives/cross_entropy.hpp"

namespace fp8lab {

namespace {

/// Parts of a step that repeat from step to step: the gradient norm, the update, and each of the
/// first micro-batches, with and without statistics. More micro-batches would take more memory than
/// they save time.
constexpr std::size_t kNorm = 0, kUpdate = 1, kRepeatedMicroBatches = 8;

std::optional<std::size_t> part_of(const StepContext& context) {
  if (context.micro_batch >= kRepeatedMicroBatches) return std::nullopt;
  return 2 + 2 * std::size_t{context.micro_batch} + (context.log_statistics ? 1 : 0);
}

void upload_scalars(Backend& backend, const TensorView& view, std::span<const double> values) {
  if (view.dtype == DType::f64) return backend.upload(view, values.data());
  std::vector<float> singles;
  for (const double value : values) singles.push_back(static_cast<float>(value));
  backend.upload(view, singles.data());
}

std::string settings_of(const AdamWSpec& spec) {
  return fmt::format("{} {} {} {} {}", spec.beta1, spec.beta2, spec.epsilon, spec.weight_decay,
                     spec.clip_norm);
}

}  // namespace

StepBlock::StepBlock(Backend& backend)
    : scalars(backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount)),
      step_number(backend.allocate(DType::i32, 1, 1)) {}

void begin_step(Backend& backend, const TensorView& scalars, double learning_rate,
                std::int64_t trained_tokens) {
  const double share = trained_tokens > 0 ? 1.0 / static_cast<double>(trained_tokens) : 0.0;
  const std::array<double, 4> values = {learning_rate, share, 0.0, 0.0};
  upload_scalars(backend, scalars.columns(StepScalar::kLearningRate, 4), values);
}

std::int64_t TrainingStep::accumulate(StepContext context, std::span<const Batch> batches,
                                      double learning_rate) const {
  std::int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.trained_tokens;
  begin_step(backend, block.scalars, learning_rate, tokens);
  // The first micro-batch speaks for the step.
  take_batches(context, batches, Measured::first);
  return tokens;
}

void TrainingStep::accumulate_again(const StepContext& context, std::span<const Batch> batches,
                                    const StepResults& results) const {
  // The sums begin anew, and what the norm has left may be what is looked for.
  std::array<double, StepScalar::kCount> scalars = results.scalars;
  for (const auto sum : {StepScalar::kLossSum, StepScalar::kGradNormSquared, StepScalar::kGradNorm,
                         StepScalar::kClipFactor}) {
    scalars[static_cast<std::size_t>(sum)] = 0.0;
  }
  upload_scalars(backend, block.scalars, scalars);
  take_batches(context, batches, Measured::every);
  upload_scalars(backend, block.scalars, results.scalars);
}

void TrainingStep::take_batches(StepContext context, std::span<const Batch> batches,
                                Measured measured) const {
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
    if (measured == Measured::first) context.log_statistics = false;
  }
}

void TrainingStep::begin_update(const AdamWSpec& spec, std::int64_t trained_tokens) const {
  if (trained_tokens == 0) return;
  repeat(kNorm, settings_of(spec), [&] {
    for (const Parameter& parameter : parameters.all()) {
      backend.run(ops::AccumulateSquareSum{parameter.gradient(), block.scalars});
    }
    backend.run(ops::BeginUpdate{spec, block.scalars});
  });
}

void TrainingStep::end_update(const AdamWSpec& spec, std::int64_t trained_tokens) const {
  if (trained_tokens > 0) {
    repeat(kUpdate, settings_of(spec), [&] {
      for (const Parameter& parameter : parameters.all()) {
        backend.run(ops::AdamW{spec, block.scalars,
                               parameter.declaration.weight_decay ? 1.0f : 0.0f,
                               parameter.tensors});
      }
    });
  }
  transformer.update_delayed_scales();
  transformer.end_step();
}

void TrainingStep::update(const AdamWSpec& spec, std::int64_t trained_tokens) const {
  begin_update(spec, trained_tokens);
  end_update(spec, trained_tokens);
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
