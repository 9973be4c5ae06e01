#include "src/train/step/execution.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "src/config/recipe/stage_recipes.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/io/hash.hpp"
#include "src/model/stress.hpp"
#include "src/train/checkpoint/identity.hpp"
#include "src/train/checkpoint/start_vocabulary.hpp"
#include "src/train/plan/memory_plan.hpp"
#include "src/train/run_check.hpp"
#include "src/train/step/schedule.hpp"
#include "src/train/step/training_step.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kDataStream = 0x5eed;

/// Returns the parameter with the first gradient that is not finite, else with the largest gradient
/// norm.
std::string outstanding_gradient(Backend& backend, const Parameters& parameters) {
  std::string name;
  double largest = -1;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_trained() || parameter.gradient().dtype == DType::f64) continue;
    std::vector<float> values(static_cast<std::size_t>(parameter.gradient().size()));
    download_floats(backend, parameter.gradient(), values);
    double squares = 0;
    for (const float value : values) squares += static_cast<double>(value) * value;
    if (!std::isfinite(squares)) return parameter.name();
    if (squares > largest) name = parameter.name();
    largest = std::max(largest, squares);
  }
  return name;
}

}  // namespace

Mixture training_stream(const DataSources& data, const RunConfig& config,
                        const StageConfig& stage) {
  return {data, config.seed, kDataStream + static_cast<std::uint32_t>(stage.kind),
          make_objective(stage.objective)->own_columns()};
}

Execution::Execution(const RunConfig& config, Backend& backend,
                     const std::filesystem::path& init_from, Say say, bool goes_on, Ranks& ranks)
    : config_(config),
      own_backend_(backend_with_exact_sources(config, backend)),
      backend_(own_backend_ ? *own_backend_ : backend),
      ranks_(ranks),
      say_(std::move(say)),
      recipe_(load_recipe(config.recipe, config.recorded)) {
  this->say("opening the data");
  open_data(init_from.empty() ? config_.init_from : init_from);
  this->say("initializing weights");
  reserve_memory();
  memory_ = std::make_unique<RunMemory>(backend_, config_, recipe_, ranks_);
  if (!goes_on) load_initial_weights(init_from);
  identify(goes_on);
  this->say("");
}

void Execution::say(const std::string& phase) const {
  if (say_) say_(phase);
}

std::int64_t Execution::total_steps() const {
  std::int64_t total = 0;
  for (const StageConfig& stage : config_.stages) total += stage.steps;
  return total;
}

void Execution::reserve_memory() {
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    const DataSources* const held_out = stages_[i].eval ? &*stages_[i].eval : nullptr;
    for (const Recipe& recipe : stages_[i].recipes) {
      const MemoryPlan plan = plan_memory(config_, config_.stages[i], recipe, backend_, held_out);
      most_memory_ = std::max(most_memory_, plan.total());
    }
  }
  backend_.reserve(static_cast<std::size_t>(most_memory_));
}

void Execution::load_initial_weights(const std::filesystem::path& init_from) {
  const std::filesystem::path& initial = init_from.empty() ? config_.init_from : init_from;
  if (!initial.empty()) say("loading weights of " + initial.string());
  if (std::optional<InitialState> state = open_start(config_, initial)) {
    load_parameters(*state->weights, initial.string(), memory_->parameters);
    histories_ = std::move(state->histories);
  } else {
    memory_->parameters.initialize(config_.seed);
  }
  memory_->parameters.round_weights(config_.seed);
}

void Execution::identify(bool goes_on) {
  say("hashing weights and data");
  identity_ = make_identity(config_, contents_of(stages_),
                            goes_on ? std::string() : hex16(memory_->parameters.hash()));
  if (!histories_.empty()) {
    identity_.emplace_back(kInitialHistories, hex16(hash_of(histories_)));
  }
}

void Execution::open_data(const std::filesystem::path& start) {
  const ModelVocabulary model = start_vocabulary(start, config_.model.vocab_size);
  stages_ = open_stages(config_, &backend_, model, open_sources);
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    streams_.push_back(training_stream(stages_[i].train, config_, config_.stages[i]));
  }
  for (const OpenedStage& stage : stages_) {
    const bool saves = std::any_of(stage.recipes.begin(), stage.recipes.end(),
                                   [](const Recipe& r) { return !r.saved_activations.empty(); });
    if (!saves) continue;
    logged_activations_ = fp8lab::logged_activations(declaration_of(config_.model));
    break;
  }
  logged_saved_ = logged_activations_.size();
  const bool quantizes_attention =
      std::any_of(stages_.begin(), stages_.end(), [](const OpenedStage& stage) {
        return std::any_of(stage.recipes.begin(), stage.recipes.end(),
                           [](const Recipe& r) { return !r.attention.empty(); });
      });
  if (quantizes_attention) {
    for (LoggedActivation& operand : logged_attention(config_.model)) {
      logged_activations_.push_back(std::move(operand));
    }
  }
  notes_ = run_notes(config_, stages_, model);
  tokenizer_ = model.tokenizer;
  for (const OpenedStage& stage : stages_) {
    for (const auto& corpus : stage.train.corpora) {
      if (tokenizer_.empty()) tokenizer_ = corpus->vocabulary().tokenizer();
    }
  }
}

void Execution::go_on_from(OpenCheckpoint checkpoint, const RunPosition& position) {
  FP8LAB_ASSERT(transformer_ == nullptr);
  checkpoint_ = std::move(checkpoint);
  position_ = position;
  muon_overflow_.look_again();
}

StreamPosition Execution::first_position() const {
  const auto at = static_cast<std::size_t>(position_.stage);
  const StageConfig& own = config_.stages[at];
  for (std::size_t i = at; i-- > 0 && !own.restart_data;) {
    const StageConfig& earlier = config_.stages[i];
    if (earlier.kind == own.kind && earlier.data == own.data) return position_.streams[i];
  }
  return streams_[at].position();
}

void Execution::continue_amax_histories(std::vector<EventRecord>& events) {
  const std::vector<std::string> missing =
      continue_histories(backend_, histories_, transformer_->operand_sets());
  if (missing.empty() || histories_.empty()) return;
  events.push_back({position_.step + 1, "amax_history_reset",
                    fmt::format("{} tensors start without an amax history: the one before "
                                "belongs to another quantizer; the first is {}",
                                missing.size(), missing.front())});
}

CheckpointScope Execution::scope() {
  return {backend_, memory_->parameters, memory_->step.scalars, transformer_->operand_sets(),
          tokenizer_};
}

std::vector<EventRecord> Execution::begin_stage() {
  const auto i = static_cast<std::size_t>(position_.stage);
  const StageConfig& config = stage();
  std::vector<EventRecord> events;
  mark_ = backend_.memory_mark();
  objective_ = make_objective(config.objective);
  make_model();
  const bool resumed = position_.streams.size() == i + 1;
  if (!resumed) position_.streams.push_back(first_position());
  streams_[i].seek(position_.streams[i]);
  if (resumed) {
    load_checkpoint(*checkpoint_, scope());
    checkpoint_.reset();  // the next checkpoint replaces it on the disk
    return events;
  }
  if (!config.reset_amax_history) continue_amax_histories(events);
  // Bounds of weights are set by the first stage at the latest.
  if (config.reset_optimizer || position_.stage == 0) {
    memory_->parameters.reset_optimizer();
    backend_.fill_zero(memory_->step.scalars);
  }
  return events;
}

const Recipe& Execution::recipe_at_work() const {
  return stages_[static_cast<std::size_t>(position_.stage)]
      .recipes[static_cast<std::size_t>(position_.recipe)];
}

void Execution::make_model() {
  transformer_ =
      make_transformer(backend_, memory_->parameters, config_, stage(), recipe_at_work());
}

bool Execution::is_recipe_due() const {
  const std::size_t next =
      recipe_of_step(stage(), position_.stage_step + 1, position_.fallback.fallen);
  return !is_stage_done() && next != static_cast<std::size_t>(position_.recipe);
}

std::vector<EventRecord> Execution::change_recipe() {
  FP8LAB_ASSERT(is_recipe_due());
  const std::string before = recipe_at_work().name;
  histories_ = amax_histories(backend_, transformer_->operand_sets());
  transformer_.reset();
  backend_.release_to(mark_);
  position_.recipe = static_cast<std::int64_t>(
      recipe_of_step(stage(), position_.stage_step + 1, position_.fallback.fallen));
  make_model();
  std::vector<EventRecord> events = {
      {position_.step + 1, "recipe_changed",
       fmt::format("from {} to {} ({}), after {} steps of stage {}", before, recipe_at_work().name,
                   recipe_at_work().hash, position_.stage_step, stage().name)}};
  continue_amax_histories(events);
  return events;
}

bool Execution::may_fall_back(std::int64_t trained_tokens) const {
  return stage().fallback && !position_.fallback.fallen && trained_tokens > 0 &&
         position_.stage_step + 1 < stage().steps;
}

void Execution::complete(std::vector<OperandStatistics>& statistics) const {
  if (statistics.empty()) return;
  if (transformer_->activation_operands().empty()) {
    const std::size_t saved = transformer_->linears().size() * kSlots.size();
    statistics.insert(statistics.begin() + static_cast<std::ptrdiff_t>(saved), logged_saved_,
                      OperandStatistics::absent());
  }
  statistics.resize(logged_operands(), OperandStatistics::absent());
}

std::string Execution::operand_name(std::size_t row) const {
  const auto& linears = memory_->parameters.declaration().linears();
  if (row < linears.size() * kSlots.size()) {
    return linears[row / kSlots.size()].name + " " + slot_name(kSlots[row % kSlots.size()]);
  }
  const LoggedActivation& activation = logged_activations_[row - linears.size() * kSlots.size()];
  return activation.layer + " " + activation.name;
}

StepSigns Execution::signs_of(const StepRecord& record, const StepTaken& taken) const {
  StepSigns signs;
  signs.loss = record.loss;
  signs.gradient_norm = record.grad_norm;
  signs.statistics = taken.statistics;
  signs.operand = [this](std::size_t i) { return operand_name(i); };
  signs.gradient = [this] { return outstanding_gradient(backend_, memory_->parameters); };
  return signs;
}

StepRecord Execution::record_of(const StepResults& results, std::int64_t trained_tokens) const {
  constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  const bool trained = trained_tokens > 0;
  StepRecord record;
  record.step = position_.step + 1;
  record.stage = static_cast<std::int32_t>(position_.stage);
  record.tokens = position_.tokens + trained_tokens;
  record.loss = trained ? results.mean_loss() : kNothing;
  record.grad_norm = trained ? results.scalar(StepScalar::kGradNorm) : kNothing;
  record.learning_rate = results.scalar(StepScalar::kLearningRate);
  record.weight_hash = results.weight_hash;
  return record;
}

std::vector<double> Execution::metrics_of_step(std::span<const Batch> batches) const {
  const std::vector<MetricColumn> all = metrics_of(config_), own = objective_->metrics();
  const std::vector<double> measured = objective_->measure(batches);
  std::vector<double> values(all.size(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto place = std::find(all.begin(), all.end(), own[i]);
    values.at(static_cast<std::size_t>(place - all.begin())) = measured.at(i);
  }
  return values;
}

void Execution::fall_back(StepTaken& taken) {
  const FallbackConfig& fallback = *stage().fallback;
  const StepSigns signs = signs_of(taken.record, taken);
  if (const auto reason = reason_to_fall_back(fallback.when, position_.fallback, signs)) {
    position_.fallback.fallen = true;
    taken.fallback = EventRecord{
        taken.record.step, "fallback",
        fmt::format("{}; recipe {} from the next step on", *reason,
                    stages_[static_cast<std::size_t>(position_.stage)].recipes.back().name)};
  }
  remember(fallback.when, signs, position_.fallback);
}

StepTaken Execution::step(const InspectStep& inspect) {
  const StageConfig& config = stage();
  const auto index = static_cast<std::size_t>(position_.stage);
  Mixture& stream = streams_[index];
  std::vector<Batch> batches;
  for (std::int64_t done = 0; done < config.batch_sequences; done += config.micro_batch_sequences) {
    batches.push_back(stream.next(config.micro_batch_sequences, config.sequence_length));
  }
  const auto is_due = [&](std::int64_t every) {
    return every > 0 && (position_.stage_step + 1) % every == 1 % every;
  };
  StepContext context;
  context.seed = config_.seed;
  context.step = static_cast<std::uint32_t>(position_.step + 1);
  context.log_statistics = ranks_.rank() == 0 && is_due(config_.logging.statistics_every_steps);
  const TrainingStep step{backend_,      memory_->parameters, *transformer_,
                          memory_->step, *objective_,         &memory_->shards};
  const double rate = learning_rate(config.learning_rate, position_.stage_step + 1, config.steps);
  StepTaken taken;
  backend_.enter({.phase = Phase::stress});
  StressedStep stressed(backend_, memory_->parameters, config, position_.stage_step, config_.seed);
  for (const std::string& what : stressed.events()) {
    taken.events.push_back({position_.step + 1, "stress", what});
  }
  if (stressed.has_planted()) memory_->parameters.round_weights(config_.seed);
  taken.trained_tokens = step.accumulate(context, batches, rate);
  stressed.end();
  if (context.log_statistics) {
    taken.without_history = transformer_->without_history();
    taken.without_history.resize(transformer_->linears().size() * kSlots.size() + logged_saved_);
    for (const auto& operands : transformer_->attention_operands()) {
      for (const OperandId id : operands->ids()) {
        taken.without_history.push_back(operands->is_without_history(id) ? 1 : 0);
      }
    }
    taken.without_history.resize(logged_operands());
  }
  if (is_due(config_.logging.update_errors_every_steps)) taken.update_errors.emplace(backend_);
  const UpdateSpec& update = config_.optimizer.update;
  step.begin_update(update, config_.seed, taken.trained_tokens);
  const bool may_fall = may_fall_back(taken.trained_tokens);
  bool updates = true;
  if (may_fall && config.fallback->when.nonfinite) {
    const StepRecord record = record_of(step.results(), taken.trained_tokens);
    updates = std::isfinite(record.loss) && std::isfinite(record.grad_norm);
  }
  const bool inspected = inspect && taken.trained_tokens > 0;
  if (inspected) {
    StepResults so_far = step.results(false, context.log_statistics);
    taken.statistics = std::move(so_far.statistics);
    complete(taken.statistics);
    const StepRecord record = record_of(so_far, taken.trained_tokens);
    inspect({record, position_.stage_step + 1 == config.steps, [&] {
               StepContext measured = context;
               measured.log_statistics = true;
               stressed.begin_again();
               step.accumulate_again(measured, batches, so_far);
               stressed.end();
               step.round_gradients(config_.seed);
             }});
  }
  if (!updates) taken.update_errors.reset();
  step.end_update(update, config_.seed, updates ? taken.trained_tokens : 0,
                  taken.update_errors ? &*taken.update_errors : nullptr);
  StepResults results =
      step.results(config_.logging.hash_every_step, context.log_statistics && !inspected);
  if (!inspected) {
    taken.statistics = std::move(results.statistics);
    complete(taken.statistics);
  }
  taken.record = record_of(results, taken.trained_tokens);
  taken.record.objective = metrics_of_step(batches);
  if (updates && taken.trained_tokens > 0) {
    const std::optional<EventRecord> overflow =
        muon_overflow_.look(backend_, memory_->parameters, update, taken.record);
    if (overflow) taken.events.push_back(*overflow);
  }
  if (may_fall) fall_back(taken);

  ++position_.step;
  ++position_.stage_step;
  position_.tokens += taken.trained_tokens;
  position_.streams[index] = stream.position();
  return taken;
}

void Execution::end_stage() {
  histories_ = amax_histories(backend_, transformer_->operand_sets());
  position_.stage_step = 0;
  position_.recipe = 0;
  position_.fallback = {};
  ++position_.stage;
  transformer_.reset();
  backend_.release_to(mark_);
}

std::int64_t Execution::host_memory_to_come() const {
  if (!backend_.is_on_host()) return 0;
  const auto held = static_cast<std::int64_t>(backend_.memory_bytes());
  return std::max<std::int64_t>(most_memory_ - held, 0);
}

void Execution::prepare_checkpoints(CheckpointWriter& writer) {
  writer.prepare(scope(), host_memory_to_come());
}

void Execution::begin_checkpoint(CheckpointWriter& writer, double seconds) {
  RunPosition position = position_;
  position.seconds = seconds;
  writer.begin(scope(), position, hash_of(identity_), recipe_at_work(), host_memory_to_come());
}

void Execution::save(const std::filesystem::path& checkpoint, double seconds) {
  CheckpointWriter writer(checkpoint);
  begin_checkpoint(writer, seconds);
  writer.end();
}

}  // namespace fp8lab
