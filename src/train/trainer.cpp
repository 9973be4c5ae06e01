#include "src/train/trainer.hpp"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "src/data/manifest.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/file_lock.hpp"
#include "src/io/hash.hpp"
#include "src/train/identity.hpp"
#include "src/train/memory_plan.hpp"
#include "src/train/run_check.hpp"
#include "src/train/schedule.hpp"
#include "src/train/training_step.hpp"

namespace fp8lab {
namespace {

constexpr std::uint32_t kDataStream = 0x5eed;
constexpr std::size_t kSampleLength = 4096;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Mixture training_stream(const DataSources& data, const RunConfig& config,
                        const StageConfig& stage) {
  return {data, config.seed, kDataStream + static_cast<std::uint32_t>(stage.kind)};
}

struct Trainer::Stage {
  std::int64_t index = 0;
  const StageConfig* config = nullptr;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<Evaluator> evaluator;
  double began = 0;  ///< when its first step of this process began
  std::int64_t began_step = 0;
};

Trainer::Trainer(const RunConfig& config, Backend& backend, TrainerOptions options)
    : config_(config),
      backend_(backend),
      options_(std::move(options)),
      directory_(options_.directory),
      recipe_(load_recipe(config.recipe)) {
  directory_.check(options_.resume);
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    const StageConfig& stage = config_.stages[i];
    stage_recipes_.push_back(stage.recipe.empty() ? recipe_ : load_recipe(stage.recipe));
    validate_stage(config_, stage, stage_recipes_.back(), backend_);
    total_steps_ += stage.steps;
  }
  say("opening the data");
  open_data();
  say("initializing weights");
  reserve_memory();
  memory_ = std::make_unique<RunMemory>(backend_, config_, recipe_);
  load_initial_weights();
  say("");
}

Trainer::~Trainer() = default;

void Trainer::reserve_memory() {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    const DataSources* const held_out = data_[i].eval ? &*data_[i].eval : nullptr;
    const MemoryPlan plan =
        plan_memory(config_, config_.stages[i], stage_recipes_[i], backend_, held_out);
    most = std::max(most, plan.total());
  }
  backend_.reserve(static_cast<std::size_t>(most));
}

void Trainer::load_initial_weights() {
  memory_->parameters.initialize(config_.seed);
  const std::filesystem::path& initial =
      options_.init_from.empty() ? config_.init_from : options_.init_from;
  if (!initial.empty()) {
    say("loading weights of " + initial.string());
    load_weights(initial, memory_->parameters);
    if (is_checkpoint(initial)) histories_ = read_amax_histories(initial);
  }
  say("hashing weights and data");
  std::vector<StageContents> contents;
  for (const StageData& data : data_) {
    contents.push_back({&data.train, data.eval ? &*data.eval : nullptr});
  }
  identity_ = make_identity(config_, contents, hex16(memory_->parameters.hash()));
  if (!histories_.empty()) {
    identity_.emplace_back(kInitialHistories, hex16(hash_of(histories_)));
  }
}

void Trainer::open_data() {
  for (const StageConfig& stage : config_.stages) {
    const std::string where = "stage " + stage.name;
    DataSources train = open_sources(stage.data, config_.model.vocab_size, where);
    std::optional<DataSources> eval;
    if (stage.eval) eval = open_sources(stage.eval->data, config_.model.vocab_size, where);
    Mixture mixture = training_stream(train, config_, stage);
    check_stage_data(stage, train, eval ? &*eval : nullptr, config_.model);
    data_.push_back({std::move(train), std::move(eval), std::move(mixture)});
  }
  std::vector<StageSources> stages;
  for (std::size_t i = 0; i < data_.size(); ++i) {
    stages.push_back({"stage " + config_.stages[i].name, &data_[i].train});
    if (data_[i].eval) stages.push_back({stages.back().where, &*data_[i].eval});
  }
  check_one_tokenizer(stages);
}

void Trainer::say(const std::string& phase) const {
  if (options_.phase) options_.phase(phase);
}

double Trainer::elapsed() const { return position_.seconds + now() - start_seconds_; }

RunMeta Trainer::make_meta() {
  RunMeta meta;
  meta.run_name = config_.name;
  meta.recipe_name = recipe_.name;
  meta.recipe_text = recipe_.text;
  meta.recipe_resolved = describe(recipe_);
  meta.recipe_hash = recipe_.hash;
  meta.config_text = config_.text;
  meta.config_hash = config_.hash;
  Xxh3Stream data;
  std::vector<ManifestEntry> entries;
  for (std::size_t i = 0; i < data_.size(); ++i) {
    for (const auto& corpus : data_[i].train.corpora) {
      const std::uint64_t hash = corpus->hash();
      data.update(&hash, sizeof hash);
    }
    entries.push_back({config_.stages[i].name, "train", &data_[i].train});
    if (data_[i].eval) entries.push_back({config_.stages[i].name, "eval", &*data_[i].eval});
  }
  meta.data_hash = hex16(data.digest());
  meta.extra["data_manifest"] = data_manifest(entries);
  meta.identity = identity_;
  for (const auto& [name, hash] : identity_) {
    if (name == kInitialWeights) meta.initial_weights_hash = hash;
  }
  meta.code_version = options_.code_version;
  meta.backend = backend_.name();
  meta.device = backend_.device();
  meta.math_profile = "exact";
  meta.simd_target = options_.simd_target;
  meta.seed = config_.seed;
  meta.parameter_count = memory_->parameters.declaration().weights();
  meta.optimizer_states =
      fmt::format("m={} v={} master={} gradient={}", name_of(config_.optimizer.first_moment),
                  name_of(config_.optimizer.second_moment), name_of(config_.optimizer.weights),
                  name_of(config_.optimizer.gradients));
  std::string stage_recipes;
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    meta.stage_names.push_back(config_.stages[i].name);
    stage_recipes += (i == 0 ? "" : ",") + config_.stages[i].name + "=" + stage_recipes_[i].name;
  }
  meta.extra["stage_recipes"] = stage_recipes;
  meta.extra["attention_kv_tile"] = std::to_string(config_.attention.kv_tile);
  meta.extra["attention_q_tile"] = std::to_string(config_.attention.q_tile);
  for (const StageConfig& stage : config_.stages) {
    if (stage.planted_outliers.channels > 0) meta.extra["variant"] = "planted outliers";
  }
  for (const auto& [key, value] : options_.extra_meta) meta.extra[key] = value;
  return meta;
}

std::vector<TensorName> Trainer::tensor_names() const {
  std::vector<TensorName> names;
  if (config_.logging.statistics_every_steps == 0) return names;
  const StageConfig& stage = config_.stages.front();
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const Declaration declaration = declaration_of(config_.model);
  for (const LinearDeclaration& layer : declaration.linears()) {
    const LinearRecipe& recipe =
        recipe_.for_layer(layer.name, static_cast<int>(config_.model.num_hidden_layers));
    for (const Slot slot : kSlots) {
      const QuantSpec& spec = recipe.slot(slot);
      const auto [rows, k] = operand_shape(slot, tokens, layer.in, layer.out);
      names.push_back(
          {layer.name, slot_name(slot), label(spec), scale_bits_per_element(spec, rows, k)});
    }
  }
  return names;
}

bool Trainer::open_log() {
  FileLock lock = directory_.lock(options_.resume);
  if (!options_.resume) {
    log_ = RunLog::create(directory_.run_file(), make_meta(), tensor_names(), std::move(lock));
    return true;
  }
  const RunStatus status = directory_.status_of(identity_, config_);
  if (status.complete) return false;
  const std::optional<CheckpointSummary> checkpoint =
      directory_.find_checkpoint(status, identity_, config_);
  if (checkpoint) position_ = checkpoint->position;
  last_evaluation_ = status.last_eval_step;
  log_ = RunLog::resume(directory_.run_file(), position_.step, config_.logging.every_steps,
                        std::move(lock));
  record_changes(status.meta);
  // One that a kill kept from being recorded.
  if (checkpoint && (status.checkpoints.empty() || status.checkpoints.back().step < position_.step))
    log_->append(CheckpointRecord{position_.step, checkpoint->hash});
  return true;
}

void Trainer::record_changes(const RunMeta& before) {
  const RunMeta now = make_meta();
  constexpr std::array<std::pair<const char*, std::string RunMeta::*>, 4> kParts = {{
      {"build_changed", &RunMeta::code_version},
      {"backend_changed", &RunMeta::backend},
      {"device_changed", &RunMeta::device},
      {"simd_changed", &RunMeta::simd_target},
  }};
  for (const auto& [kind, member] : kParts) {
    if (before.*member == now.*member) continue;
    log_->append(EventRecord{
        position_.step, kind,
        fmt::format("began with '{}', continues with '{}'", before.*member, now.*member)});
  }
}

StreamPosition Trainer::first_position(std::int64_t stage) const {
  const auto at = static_cast<std::size_t>(stage);
  const StageConfig& own = config_.stages[at];
  for (std::size_t i = at; i-- > 0 && !own.restart_data;) {
    const StageConfig& earlier = config_.stages[i];
    if (earlier.kind == own.kind && earlier.data == own.data) return position_.streams[i];
  }
  return data_[at].stream.position();
}

void Trainer::continue_amax_histories(Stage& stage) {
  if (stage.config->reset_amax_history) return;
  const std::vector<std::string> missing =
      continue_histories(backend_, histories_, stage.transformer->linears());
  if (missing.empty() || histories_.empty()) return;
  log_->append(EventRecord{position_.step + 1, "amax_history_reset",
                           fmt::format("{} tensors start without an amax history: the one before "
                                       "belongs to another quantizer; the first is {}",
                                       missing.size(), missing.front())});
}

std::unique_ptr<Trainer::Stage> Trainer::begin_stage(std::int64_t index) {
  auto stage = std::make_unique<Stage>();
  const auto i = static_cast<std::size_t>(index);
  stage->index = index;
  stage->config = &config_.stages[i];
  const StageConfig& config = *stage->config;
  stage->transformer =
      make_transformer(backend_, memory_->parameters, config_, config, stage_recipes_[i]);
  if (config.eval.has_value()) {
    stage->evaluator =
        std::make_unique<Evaluator>(backend_, memory_->parameters, *stage->transformer,
                                    *config.eval, *data_[i].eval, options_.stop);
  }
  const bool resumed = position_.streams.size() == i + 1;
  if (resumed) {
    load_checkpoint(
        directory_.checkpoint_file(),
        {backend_, memory_->parameters, memory_->step.scalars, stage->transformer->linears()});
    data_[i].stream.seek(position_.streams[i]);
  } else {
    position_.streams.push_back(first_position(index));
    data_[i].stream.seek(position_.streams[i]);
    continue_amax_histories(*stage);
    if (config.reset_optimizer) {
      memory_->parameters.reset_optimizer();
      backend_.fill_zero(memory_->step.scalars);
    }
    if (config.planted_outliers.channels > 0) {
      plant_outliers(memory_->parameters, config.planted_outliers, config_.seed);
      log_->append(EventRecord{position_.step + 1, "outliers_planted",
                               fmt::format("{} channels, gain {}", config.planted_outliers.channels,
                                           config.planted_outliers.gain)});
    }
  }
  stage->began = now();
  stage->began_step = position_.step;
  return stage;
}

void Trainer::train_step(Stage& stage) {
  const StageConfig& config = *stage.config;
  Mixture& stream = data_[static_cast<std::size_t>(stage.index)].stream;
  std::vector<Batch> batches;
  for (std::int64_t done = 0; done < config.batch_sequences; done += config.micro_batch_sequences) {
    batches.push_back(stream.next(config.micro_batch_sequences, config.sequence_length));
  }
  const std::int64_t every = config_.logging.statistics_every_steps;
  StepContext context;
  context.seed = config_.seed;
  context.step = static_cast<std::uint32_t>(position_.step + 1);
  context.log_statistics = every > 0 && (position_.stage_step + 1) % every == 1 % every;
  const TrainingStep step{backend_, memory_->parameters, *stage.transformer, memory_->step};
  const double rate = learning_rate(config.learning_rate, position_.stage_step + 1, config.steps);
  const std::int64_t tokens = step.accumulate(context, batches, rate);
  const std::vector<std::uint8_t> without_history = stage.transformer->without_history();
  step.update(config_.optimizer.adamw, tokens);
  const StepResults results = step.results(config_.logging.hash_every_step, context.log_statistics);
  record_step(stage, tokens, results);
  if (!context.log_statistics) return;
  log_->append_tensors(position_.step, results.statistics, without_history);
}

void Trainer::record_nonfinite(const StepRecord& record) {
  for (const Parameter& parameter : memory_->parameters.all()) {
    const TensorView& gradient = parameter.gradient();
    if (gradient.dtype == DType::f64) continue;
    std::vector<float> values(static_cast<std::size_t>(gradient.size()));
    download_floats(backend_, gradient, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      log_->append(
          EventRecord{record.step, "nan",
                      fmt::format("gradient of {} is not finite at row {}, column {}",
                                  parameter.name(), static_cast<std::int64_t>(i) / gradient.cols,
                                  static_cast<std::int64_t>(i) % gradient.cols)});
      const std::size_t first = i < kSampleLength / 2 ? 0 : i - kSampleLength / 2;
      const std::size_t last = std::min(values.size(), first + kSampleLength);
      log_->append_sample(record.step, "gradient/" + parameter.name(),
                          {values.begin() + static_cast<std::ptrdiff_t>(first),
                           values.begin() + static_cast<std::ptrdiff_t>(last)});
      return;
    }
  }
  log_->append(EventRecord{
      record.step, "nan",
      fmt::format("loss {} or gradient norm {} is not finite", record.loss, record.grad_norm)});
}

void Trainer::record_step(Stage& stage, std::int64_t tokens, const StepResults& results) {
  ++position_.step;
  ++position_.stage_step;
  position_.tokens += tokens;
  const auto index = static_cast<std::size_t>(stage.index);
  position_.streams[index] = data_[index].stream.position();
  StepRecord record;
  record.step = position_.step;
  record.stage = static_cast<std::int32_t>(stage.index);
  record.tokens = position_.tokens;
  record.loss = record.grad_norm = std::numeric_limits<double>::quiet_NaN();
  if (tokens > 0) {
    record.loss = results.mean_loss();
    record.grad_norm = results.scalar(StepScalar::kGradNorm);
  } else {
    log_->append(EventRecord{record.step, "no_targets",
                             "no token of this step is trained on; the weights stay"});
  }
  record.learning_rate = results.scalar(StepScalar::kLearningRate);
  record.seconds = elapsed();
  record.weight_hash = results.weight_hash;
  const bool last = position_.stage_step == stage.config->steps;
  const bool finite =
      tokens == 0 || (std::isfinite(record.loss) && std::isfinite(record.grad_norm));
  if (position_.step % config_.logging.every_steps == 0 || last || !finite) log_->append(record);
  if (!finite) {
    record_nonfinite(record);
    log_->flush();
    if (config_.logging.nonfinite == NonfinitePolicy::stop) {
      throw RuntimeFailure(fmt::format("step {}: loss {} and gradient norm {}; see /events of {}",
                                       record.step, record.loss, record.grad_norm,
                                       directory_.run_file().string()));
    }
  }
  if (options_.progress) {
    const double spent = now() - stage.began;
    const auto steps = static_cast<double>(position_.step - stage.began_step);
    const auto batch_tokens =
        static_cast<double>(stage.config->batch_sequences * stage.config->sequence_length);
    options_.progress({position_.step, total_steps_, stage.config->name, record.loss,
                       record.grad_norm, record.learning_rate, batch_tokens * steps / spent,
                       spent / steps * static_cast<double>(total_steps_ - position_.step)});
  }
}

bool Trainer::evaluation_is_due(const Stage& stage) const {
  if (stage.evaluator == nullptr || position_.stage_step == 0) return false;
  return position_.stage_step == stage.config->steps ||
         position_.stage_step % stage.config->eval->every_steps == 0;
}

bool Trainer::evaluate(Stage& stage) {
  const bool last = position_.stage_step == stage.config->steps;
  StepContext context;
  context.seed = config_.seed;
  context.step = static_cast<std::uint32_t>(position_.step);
  EvalRecord record;
  record.step = position_.step;
  record.stage = static_cast<std::int32_t>(stage.index);
  Evaluation evaluation;
  say(fmt::format("evaluating after step {}", position_.step));
  try {
    evaluation = stage.evaluator->evaluate(context, last);
  } catch (const EvaluationStopped&) {
    say("");
    return false;
  }
  say("");
  record.loss = evaluation.held_out.mean;
  if (const auto& match = evaluation.exact_match) {
    record.exact_match_count = match->asked;
    record.exact_match = match->asked > 0
                             ? static_cast<double>(match->right) / static_cast<double>(match->asked)
                             : -1.0;
  }
  log_->append(record);
  for (const Score& score : scores_of(evaluation)) {
    log_->append(ScoreRecord{record.step, record.stage, score.name, score.value, score.count});
  }
  return true;
}

void Trainer::checkpoint(Stage& stage) {
  RunPosition position = position_;
  position.seconds = elapsed();
  say("writing a checkpoint");
  log_->flush();
  const std::uint64_t hash = save_checkpoint(
      directory_.checkpoint_file(),
      {backend_, memory_->parameters, memory_->step.scalars, stage.transformer->linears()},
      position, hash_of(identity_), stage_recipes_[static_cast<std::size_t>(stage.index)]);
  log_->append(CheckpointRecord{position.step, hash});
  log_->flush();
  say("");
}

RunOutcome Trainer::run() {
  start_seconds_ = now();
  say("opening the run file");
  if (!open_log()) return RunOutcome::complete;
  const std::size_t mark = backend_.memory_mark();
  for (auto index = position_.stage; index < static_cast<std::int64_t>(config_.stages.size());
       ++index) {
    say("preparing stage " + config_.stages[static_cast<std::size_t>(index)].name);
    const std::unique_ptr<Stage> stage = begin_stage(index);
    say("");
    const bool missing = evaluation_is_due(*stage) && last_evaluation_ < position_.step;
    if (missing && !evaluate(*stage)) return RunOutcome::interrupted;
    const std::int64_t every = config_.logging.checkpoint_every_steps;
    while (position_.stage_step < stage->config->steps) {
      train_step(*stage);
      if (evaluation_is_due(*stage)) evaluate(*stage);
      const bool stop = options_.stop != nullptr && options_.stop->load();
      const bool last = position_.stage_step == stage->config->steps;
      if (stop || last || (every > 0 && position_.stage_step % every == 0)) checkpoint(*stage);
      if (stop) return RunOutcome::interrupted;
    }
    histories_ = amax_histories(backend_, stage->transformer->linears());
    position_.stage_step = 0;
    ++position_.stage;
    backend_.release_to(mark);
  }
  log_->complete(memory_->parameters.hash());
  return RunOutcome::complete;
}

}  // namespace fp8lab
