#include "src/train/step/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace fp8lab {

namespace {

/// Parts of a step that a backend may keep as graphs: the gradient norm, the update, and each of
/// the first micro-batches, with and without statistics. Graphs of more micro-batches would cost
/// more memory than they save time.
constexpr std::size_t kNorm = 0, kUpdate = 1, kRepeatedMicroBatches = 8;

std::optional<std::size_t> part_of(const StepContext& context) {
  if (context.micro_batch >= kRepeatedMicroBatches) return std::nullopt;
  return 2 + 2 * std::size_t{context.micro_batch} + (context.log_statistics ? 1 : 0);
}

void upload_scalars(Backend& backend, const TensorView& view, std::span<const double> values) {
  const LabelScope scope(backend, backend.label().on_tensor(kStepScalars));
  if (view.dtype == DType::f64) return backend.upload(view, values.data());
  std::vector<float> singles;
  for (const double value : values) singles.push_back(static_cast<float>(value));
  backend.upload(view, singles.data());
}

std::string settings_of(const UpdateSpec& spec, std::uint64_t seed) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", name_of(spec.rule), spec.beta1,
                     spec.beta2, spec.epsilon, spec.weight_decay, spec.clip_norm,
                     spec.moments == MomentUse::rounded, spec.gradient_bound, spec.rate_factor,
                     spec.momentum, spec.update_scale == UpdateScale::original, seed);
}

}  // namespace

StepBlock::StepBlock(Backend& backend)
    : scalars(backend.allocate(backend.storage(DType::f32), 1, StepScalar::kCount)),
      step_number(backend.allocate(DType::i32, 1, 1)) {}

void begin_step(Backend& backend, const TensorView& scalars, double learning_rate,
                std::int64_t trained_tokens) {
  backend.enter({});
  const double share = trained_tokens > 0 ? 1.0 / static_cast<double>(trained_tokens) : 0.0;
  const std::array<double, 4> values = {learning_rate, share, 0.0, 0.0};
  upload_scalars(backend, scalars.columns(StepScalar::kLearningRate, 4), values);
}

std::int64_t TrainingStep::accumulate(StepContext context, std::span<const Batch> batches,
                                      double learning_rate) const {
  std::int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.trained_tokens;
  begin_step(backend, block.scalars, learning_rate, tokens);
  // Statistics of a step are those of its first micro-batch.
  take_batches(context, batches, Measured::first);
  return tokens;
}

void TrainingStep::accumulate_again(const StepContext& context, std::span<const Batch> batches,
                                    const StepResults& results) const {
  backend.enter({});
  // Resets the accumulators: a NaN left by the norm must not be taken for the fault searched for.
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
  {
    const LabelScope scope(backend, backend.label().on_tensor("step number"));
    backend.upload(block.step_number, &number);
  }
  context.step = 0;
  context.step_counter = static_cast<const std::uint32_t*>(block.step_number.data);
  context.measures_chunks = measured == Measured::every;
  const std::size_t of_step = shards == nullptr ? 1 : static_cast<std::size_t>(shards->shards());
  const std::size_t of_rank =
      shards == nullptr ? 1 : static_cast<std::size_t>(shards->shards_of_rank());
  const std::size_t first = shards == nullptr ? 0 : static_cast<std::size_t>(shards->first_shard());
  FP8LAB_ASSERT(batches.size() % of_step == 0);
  const std::size_t length = batches.size() / of_step;  // micro-batches of a shard
  const bool measures = context.log_statistics;
  for (std::size_t i = first * length; i < (first + of_rank) * length; ++i) {
    const std::size_t in_shard = i % length;
    context.micro_batch = static_cast<std::uint32_t>(i);
    context.log_statistics = measures && (i == 0 || measured == Measured::every);
    context.adds_to_gradients = in_shard > 0;
    take_batch(context, batches[i], static_cast<std::int64_t>(i / length - first),
               in_shard + 1 == length);
  }
  if (shards == nullptr) return;
  shards->select(0);
  shards->add_over_ranks();
}

void TrainingStep::take_batch(const StepContext& context, const Batch& batch, std::int64_t shard,
                              bool ends_shard) const {
  if (shards != nullptr) shards->select(shard);
  backend.enter({.micro_batch = context.micro_batch});
  transformer.load(batch);
  repeat(part_of(context), fmt::format("{} {}", context.seed, context.measures_chunks), [&] {
    if (!context.adds_to_gradients) parameters.zero_gradients();
    if (!context.adds_to_gradients && shard == 0) {
      // All ranks draw the random bits of the weights' codes for the first micro-batch of the step.
      StepContext of_step = context;
      of_step.micro_batch = 0;
      transformer.prepare_weights(of_step);
    }
    transformer.forward(context);
    objective.run(transformer, block.scalars, Leaves::gradient);
    transformer.backward(context);
    if (shards != nullptr && ends_shard) shards->add(shard);
  });
}

void TrainingStep::share_amaxes() const {
  if (shards == nullptr || shards->ranks().size() == 1) return;
  std::vector<TensorView> views;
  for (const NamedOperands& module : transformer.operand_sets()) {
    for (const TensorView& state : module.operands->delayed_states()) {
      if (!state.empty()) views.push_back(state.columns(DelayedState::kAmax, 1));
    }
  }
  std::vector<float> amaxes(views.size());
  std::vector<Download> downloads;
  for (std::size_t i = 0; i < views.size(); ++i) downloads.push_back({&amaxes[i], views[i]});
  backend.download_all(downloads);
  shards->ranks().maximum(amaxes);
  for (std::size_t i = 0; i < views.size(); ++i) backend.upload(views[i], &amaxes[i]);
}

RandomKey TrainingStep::key_of(std::uint64_t seed) const {
  RandomKey key;
  key.seed = seed;
  key.step_counter = static_cast<const std::uint32_t*>(block.step_number.data);
  return key;
}

void TrainingStep::round_gradients(std::uint64_t seed) const {
  const RandomKey key = key_of(seed);
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_trained()) continue;
    const LabelScope scope(backend, backend.label().in_layer(parameter.name()));
    parameters.round(parameter, StateRole::gradient, parameter.gradient(),
                     parameters.gradient_storage(), key);
  }
}

void TrainingStep::begin_update(const UpdateSpec& spec, std::uint64_t seed,
                                std::int64_t trained_tokens) const {
  if (trained_tokens == 0) return;
  backend.enter(backend.label().in_phase(Phase::update));
  repeat(kNorm, settings_of(spec, seed), [&] {
    round_gradients(seed);
    std::vector<TensorView> gradients;
    for (const Parameter& parameter : parameters.all()) {
      if (parameter.is_trained()) gradients.push_back(parameter.gradient());
    }
    backend.run(ops::AccumulateSquareSum{gradients, block.scalars});
    backend.run(ops::BeginUpdate{spec, block.scalars});
  });
}

void TrainingStep::end_update(const UpdateSpec& spec, std::uint64_t seed,
                              std::int64_t trained_tokens, UpdateErrors* errors) const {
  backend.enter(backend.label().in_phase(Phase::update));
  if (trained_tokens > 0) {
    // Measurements wait for downloads, so that the update is not kept as a graph.
    repeat(errors == nullptr ? std::optional(kUpdate) : std::nullopt, settings_of(spec, seed),
           [&] { update_weights(spec, key_of(seed), errors); });
  }
  share_amaxes();
  transformer.update_delayed_scales();
  transformer.end_step();
}

void TrainingStep::update(const UpdateSpec& spec, std::uint64_t seed, std::int64_t trained_tokens,
                          UpdateErrors* errors) const {
  begin_update(spec, seed, trained_tokens);
  end_update(spec, seed, trained_tokens, errors);
}

void TrainingStep::update_weights(const UpdateSpec& spec, const RandomKey& key,
                                  UpdateErrors* errors) const {
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_trained()) continue;
    const LabelScope scope(backend, backend.label().in_layer(parameter.name()));
    if (errors != nullptr) errors->before(parameter);
    update_parameter(parameter, spec, key, errors);
    if (errors != nullptr) errors->after(parameter);
  }
}

void TrainingStep::update_parameter(const Parameter& parameter, const UpdateSpec& spec,
                                    const RandomKey& key, UpdateErrors* errors) const {
  const ParameterTensors& t = parameter.tensors;
  UpdateSpec own = spec;
  own.rule = parameter.rule;
  float decay_mask = parameter.declaration.weight_decay ? 1.0f : 0.0f;
  own.rate_factor *= parameter.rate_factor();
  if (parameter.group.weight_decay >= 0.0f) {
    own.weight_decay = parameter.group.weight_decay;
    decay_mask = 1.0f;
  }
  const bool is_plain = is_plain_state(parameters.weight_storage());
  const bool is_rounded = own.moments == MomentUse::rounded;
  if (parameters.is_updated_at_once(parameter)) {
    backend.run(ops::AdamW{.spec = own,
                           .scalars = block.scalars,
                           .decay_mask = decay_mask,
                           .tensors = {.master = t.master,
                                       .working = t.working,
                                       .gradient = t.gradient,
                                       .first_moment = t.first_moment.codes,
                                       .second_moment = t.second_moment.codes}});
    return;
  }
  constexpr StateRole kFirst = StateRole::first_moment, kSecond = StateRole::second_moment;
  TensorView m, v;  // in FP32
  const auto advance = [&] {
    backend.run(ops::AdvanceMoments{.spec = own,
                                    .scalars = block.scalars,
                                    .gradient = t.gradient,
                                    .first_moment = m,
                                    .second_moment = v});
    if (errors != nullptr) errors->computed(m, v);
  };
  const auto load = [&] {
    m = parameters.load(kFirst, t.first_moment);
    v = parameters.load(kSecond, t.second_moment);
  };
  const auto store = [&] {
    parameters.store(parameter, kFirst, t.first_moment, key);
    parameters.store(parameter, kSecond, t.second_moment, key);
    if (errors == nullptr) return;
    load();
    errors->stored(m, v, own.epsilon);
  };
  const auto update = [&] {
    if (own.rule == UpdateRule::muon) return update_parts(parameter, own, decay_mask, m);
    backend.run(ops::UpdateWeights{.spec = own,
                                   .scalars = block.scalars,
                                   .decay_mask = decay_mask,
                                   .master = t.master,
                                   .working = is_plain ? t.working : TensorView{},
                                   .gradient = t.gradient,
                                   .first_moment = m,
                                   .second_moment = v,
                                   .weight_bound = t.weight_bound});
  };
  load();
  if (own.rule == UpdateRule::lion) {  // Lion reads the moment of the previous step
    update();
    advance();
    store();
  } else if (is_rounded) {
    advance();
    store();
    load();
    update();
  } else {
    advance();
    update();
    store();
  }
  if (is_plain) return;
  parameters.round(parameter, StateRole::weights, t.master, parameters.weight_storage(), key);
  if (!t.working.empty()) backend.run(ops::Copy{t.master, t.working});
}

void TrainingStep::update_parts(const Parameter& parameter, const UpdateSpec& spec,
                                float decay_mask, const TensorView& momentum) const {
  const bool is_plain = is_plain_state(parameters.weight_storage());
  parameters.for_each_muon_part(
      parameter, spec, block.scalars, momentum,
      [&](const ops::Orthogonalize& op, const TensorView& weights, const TensorView& working) {
        backend.run(op);
        backend.run(ops::UpdateWeights{.spec = op.spec,
                                       .scalars = block.scalars,
                                       .decay_mask = decay_mask,
                                       .master = weights,
                                       .working = is_plain ? working : TensorView{},
                                       .gradient = op.gradient,
                                       .first_moment = op.update,
                                       .second_moment = {},
                                       .weight_bound = {}});
      });
}

void TrainingStep::repeat(std::optional<std::size_t> part, const std::string& settings,
                          const std::function<void()>& enqueue) const {
  if (!part) return enqueue();
  // Parameters stay where they are as long as the transformer; the scalars may move.
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
    std::vector<TensorView> records;
    for (const auto& linear : linears) records.push_back(linear->statistics());
    for (const auto& saved : transformer.activation_operands()) {
      records.push_back(saved->statistics());
    }
    for (const auto& operands : transformer.attention_operands()) {
      records.push_back(operands->statistics());
    }
    std::size_t count = 0;
    for (const TensorView& record : records) count += static_cast<std::size_t>(record.rows);
    results.statistics.resize(count);
    OperandStatistics* next = results.statistics.data();
    for (const TensorView& record : records) {
      downloads.push_back({next, record});
      next += record.rows;
    }
  }
  backend.download_all(downloads);
  if (!wide) std::copy(singles.begin(), singles.end(), results.scalars.begin());
  return results;
}

}  // namespace fp8lab
