#include "src/train/trainer.hpp"

#include <fmt/core.h>

#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

#include "src/config/recipe/stage_recipes.hpp"
#include "src/data/manifest.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/hash.hpp"
#include "src/train/checkpoint/identity.hpp"
#include "src/train/checkpoint/start_vocabulary.hpp"
#include "src/train/run_record.hpp"
#include "src/train/watch/told_log.hpp"

namespace fp8lab {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string name_of_state(const QuantSpec& spec) {
  if (spec == plain_state(DType::f32)) return std::string(name_of(DType::f32));
  return state_label(spec);
}

}  // namespace

struct Trainer::Stage {
  const StageConfig* config = nullptr;
  std::unique_ptr<Evaluator> evaluator;
  double began = 0;  ///< start of the stage's first step in this process
  std::int64_t began_step = 0;
};

Trainer::Trainer(const RunConfig& config, Backend& backend, TrainerOptions options)
    : config_(config),
      backend_(backend),
      options_(std::move(options)),
      directory_(options_.directory),
      writer_(directory_.checkpoint_file()) {
  directory_.check(options_.resume);
  execution_ = std::make_unique<Execution>(config_, backend_, config_.init_from, options_.phase);
  watch_ = std::make_unique<RunWatch>(config_, backend_, *execution_);
}

Trainer::~Trainer() = default;

void Trainer::say(const std::string& phase) const {
  if (options_.phase) options_.phase(phase);
}

double Trainer::elapsed() const { return execution_->position().seconds + now() - start_seconds_; }

RunMeta Trainer::make_meta() {
  RunMeta meta;
  meta.run_name = config_.name;
  const Recipe& recipe = execution_->recipe();
  meta.recipe_name = recipe.name;
  meta.recipe_text = recipe.text;
  meta.recipe_resolved = describe(recipe);
  meta.recipe_hash = recipe.hash;
  meta.config_text = config_.text;
  meta.config_hash = config_.hash;
  Xxh3Stream data;
  std::vector<ManifestEntry> entries;
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    const OpenedStage& opened = execution_->stages()[i];
    for (const auto& corpus : opened.train.corpora) {
      const std::uint64_t hash = corpus->hash();
      data.update(&hash, sizeof hash);
    }
    entries.push_back({config_.stages[i].name, "train", &opened.train});
    if (opened.eval) entries.push_back({config_.stages[i].name, "eval", &*opened.eval});
  }
  meta.data_hash = hex16(data.digest());
  meta.extra["data_manifest"] = data_manifest(entries);
  meta.extra[kRecipesKey] = recipes_record(recipe_texts());
  std::error_code error;  // the folder may have been removed
  const std::filesystem::path folder = std::filesystem::current_path(error);
  if (!error) meta.extra[kStartedInKey] = folder.string();
  if (!execution_->tokenizer().empty()) meta.extra[kTokenizerKey] = execution_->tokenizer();
  meta.identity = execution_->identity();
  for (const auto& [name, hash] : meta.identity) {
    if (name == kInitialWeights) meta.initial_weights_hash = hash;
  }
  meta.code_version = options_.code_version;
  meta.backend = backend_.name();
  meta.device = backend_.device();
  meta.math_profile = "exact";
  meta.simd_target = options_.simd_target;
  meta.seed = config_.seed;
  meta.parameter_count = execution_->parameters().declaration().weights();
  meta.optimizer_states = fmt::format(
      "m={} v={} master={} gradient={}", name_of_state(config_.optimizer.first_moment),
      name_of_state(config_.optimizer.second_moment), name_of_state(config_.optimizer.weights),
      name_of_state(config_.optimizer.gradients));
  std::string stage_recipes, stage_steps;
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    meta.stage_names.push_back(config_.stages[i].name);
    stage_recipes += (i == 0 ? "" : ",") + config_.stages[i].name + "=" +
                     recipes_text(config_, config_.stages[i]);
    stage_steps += fmt::format("{}{}", i == 0 ? "" : ",", config_.stages[i].steps);
  }
  meta.extra["stage_recipes"] = stage_recipes;
  meta.extra["stage_steps"] = stage_steps;
  meta.extra["tensors_recipe"] = named_recipe().name;
  if (const auto others = other_quantizers(); !others.empty()) {
    meta.extra[kQuantizersKey] = quantizers_record(others);
  }
  meta.extra["attention_kv_tile"] = std::to_string(config_.attention.kv_tile);
  meta.extra["attention_q_tile"] = std::to_string(config_.attention.q_tile);
  for (const auto& [key, value] : options_.extra_meta) meta.extra[key] = value;
  return meta;
}

RecipeTexts Trainer::recipe_texts() const {
  RecipeTexts texts = {{config_.recipe, execution_->recipe().text}};
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    const StageConfig& stage = config_.stages[i];
    const std::vector<StageRecipe> of = recipes_of(config_, stage);
    for (std::size_t j = 0; j < of.size(); ++j) {
      texts[of[j].name] = execution_->stages()[i].recipes[j].text;
    }
    const std::optional<Recipe>& rollout = execution_->stages()[i].inputs.rollout_recipe;
    if (rollout) texts[stage.eval->rollout->recipe] = rollout->text;
  }
  return texts;
}

const Recipe& Trainer::named_recipe() const {
  for (const StageConfig& stage : config_.stages) {
    for (const StageRecipe& recipe : recipes_of(config_, stage)) {
      if (recipe.name == config_.recipe && !recipe.is_fallback) return execution_->recipe();
    }
  }
  return execution_->stages().front().recipes.front();
}

std::map<std::string, std::vector<TensorName>> Trainer::other_quantizers() const {
  std::map<std::string, std::vector<TensorName>> others;
  if (config_.logging.statistics_every_steps == 0) return others;
  for (std::size_t i = 0; i < config_.stages.size(); ++i) {
    for (const Recipe& recipe : execution_->stages()[i].recipes) {
      if (recipe.name == named_recipe().name || others.count(recipe.name) != 0) continue;
      others[recipe.name] = tensor_names(config_.stages[i], recipe);
    }
  }
  return others;
}

std::vector<TensorName> Trainer::tensor_names(const StageConfig& stage,
                                              const Recipe& recipe_of_run) const {
  std::vector<TensorName> names;
  if (config_.logging.statistics_every_steps == 0) return names;
  const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
  const Declaration declaration = declaration_of(config_.model);
  const Recipe run = without_exact_sources(config_, recipe_of_run);
  for (const LinearDeclaration& layer : declaration.linears()) {
    const LinearRecipe& recipe =
        run.for_layer(layer.name, static_cast<int>(config_.model.layer_count()));
    for (const Slot slot : kSlots) {
      const QuantSpec& spec = recipe.slot(slot);
      const auto [rows, k] = operand_shape(slot, tokens, layer.in, layer.out);
      names.push_back(
          {layer.name, slot_name(slot), label(spec), scale_bits_per_element(spec, rows, k)});
    }
  }
  const AttentionExtents extents{stage.sequence_length, config_.model.head_dim,
                                 config_.attention.q_tile, config_.attention.kv_tile};
  for (const LoggedActivation& activation : execution_->logged_activations()) {
    const QuantSpec spec = logged_spec(run, activation, extents);
    names.push_back({activation.layer, activation.name, label(spec),
                     scale_bits_per_element(spec, tokens, activation.extent)});
  }
  return names;
}

std::unique_ptr<RunLog> Trainer::told(std::unique_ptr<RunLog> log) const {
  return options_.tell ? told_log(std::move(log), options_.tell) : std::move(log);
}

bool Trainer::open_log() {
  FileLock lock = directory_.lock(options_.resume);
  if (!options_.resume) {
    log_ = told(RunLog::create(directory_.run_file(), make_meta(),
                               tensor_names(config_.stages.front(), named_recipe()),
                               std::move(lock), metrics_of(config_)));
    return true;
  }
  const Identity& identity = execution_->identity();
  const RunStatus status = directory_.status_of(identity, config_);
  if (status.complete) return false;
  std::optional<CheckpointSummary> checkpoint =
      directory_.find_checkpoint(status, identity, config_);
  if (checkpoint) {
    RunPosition& position = checkpoint->position;
    if (position.seconds == 0) {
      position.seconds = read_elapsed(directory_.run_file(), position.step);
    }
    execution_->go_on_from(std::make_shared<const CheckpointFile>(directory_.checkpoint_file()),
                           checkpoint->position);
  }
  if (options_.tell) {
    options_.tell(checkpoint
                      ? fmt::format("continues after step {}, from {}", checkpoint->position.step,
                                    directory_.checkpoint_file().string())
                      : "no checkpoint yet: begins again at step 1");
  }
  last_evaluation_ = status.last_eval_step;
  // Drops rows after the checkpoint.
  const bool is_kept = status.last_bf16_step <= execution_->position().step;
  last_in_bf16_ = is_kept ? status.last_bf16_step : 0;
  watch_->go_on(directory_.run_file(), execution_->position().step);
  say("preparing stage " + execution_->stage().name);
  begun_ = execution_->begin_stage();
  log_ = told(RunLog::resume(directory_.run_file(), execution_->position().step,
                             config_.logging.every_steps, std::move(lock)));
  record_changes(status.meta);
  // A checkpoint that was written but not recorded before a kill.
  if (checkpoint &&
      (status.checkpoints.empty() || status.checkpoints.back().step < checkpoint->position.step))
    log_->append(CheckpointRecord{checkpoint->position.step, checkpoint->hash,
                                  checkpoint->position.seconds});
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
        execution_->position().step, kind,
        fmt::format("began with '{}', continues with '{}'", before.*member, now.*member)});
  }
}

Trainer::Stage Trainer::begin_stage() {
  Stage stage;
  const bool is_begun = begun_.has_value();
  const auto events = is_begun ? *std::exchange(begun_, std::nullopt) : execution_->begin_stage();
  for (const EventRecord& event : events) log_->append(event);
  watch_->begin_stage();
  stage.config = &execution_->stage();
  make_evaluator(stage);
  execution_->prepare_checkpoints(writer_);
  stage.began = now();
  stage.began_step = execution_->position().step;
  return stage;
}

void Trainer::change_recipe(Stage& stage) {
  stage.evaluator.reset();
  for (const EventRecord& event : execution_->change_recipe()) log_->append(event);
  watch_->change_recipe();
  make_evaluator(stage);
}

void Trainer::make_evaluator(Stage& stage) {
  const auto index = static_cast<std::size_t>(execution_->position().stage);
  if (stage.config->eval.has_value()) {
    stage.evaluator = std::make_unique<Evaluator>(
        execution_->backend(), execution_->parameters(), execution_->transformer(),
        *stage.config->eval, *execution_->stages()[index].eval, execution_->stages()[index].inputs,
        options_.stop);
  }
}

void Trainer::record_nonfinite(const StepRecord& record) {
  if (watch_->record_nonfinite(*log_, record)) return;
  const std::string growth = watch_->growth();
  const std::string before = growth.empty() ? "" : growth + "; ";
  for (const Parameter& parameter : execution_->parameters().all()) {
    const TensorView& gradient = parameter.gradient();
    if (!parameter.is_trained() || gradient.dtype == DType::f64) continue;
    std::vector<float> values(static_cast<std::size_t>(gradient.size()));
    download_floats(backend_, gradient, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      log_->append(
          EventRecord{record.step, "nan",
                      fmt::format("{}gradient of {} is not finite at row {}, column {}", before,
                                  parameter.name(), static_cast<std::int64_t>(i) / gradient.cols,
                                  static_cast<std::int64_t>(i) % gradient.cols)});
      log_->append_sample(record.step, "gradient/" + parameter.name(), sample_around(values, i));
      return;
    }
  }
  const std::string found =
      std::isfinite(record.loss)
          ? fmt::format("gradient norm {} overflows FP32: loss {} and all gradients are finite",
                        record.grad_norm, record.loss)
          : fmt::format("loss {} is not finite, all gradients are", record.loss);
  log_->append(EventRecord{record.step, "nan", before + found});
}

void Trainer::train_step(const Stage& stage) {
  StepTaken taken = execution_->step(watch_->inspection());
  StepRecord& record = taken.record;
  for (const EventRecord& event : taken.events) log_->append(event);
  if (taken.trained_tokens == 0) {
    log_->append(EventRecord{record.step, "no_targets",
                             "no token of this step is trained on; the weights stay"});
  }
  record.seconds = elapsed();
  record_step(stage, taken);
  if (taken.update_errors) record_update_errors(record, *taken.update_errors);
  if (!taken.statistics.empty()) {
    log_->append_tensors(record.step, taken.statistics, taken.without_history);
  }
  watch_->record(*log_, taken);
}

void Trainer::record_update_errors(const StepRecord& record, const UpdateErrors& errors) {
  const auto add = [&](const char* name, double value, std::int64_t count) {
    log_->append(ScoreRecord{record.step, record.stage, name, value, count});
  };
  add("update/lost", errors.lost(), errors.with_gradient());
  if (!errors.has_moments()) return;
  const UpdateSpec& rule = config_.optimizer.update;
  const std::int64_t count = errors.elements();
  if (rule.has_first_moment()) add("update/first_moment_error", errors.first_moment(), count);
  if (errors.has_second_moments()) add("update/second_moment_error", errors.second_moment(), count);
  if (rule.has_first_moment() && errors.has_second_moments()) {
    add("update/direction_error", errors.direction(), count);
  }
}

void Trainer::record_step(const Stage& stage, const StepTaken& taken) {
  const StepRecord& record = taken.record;
  const bool finite =
      taken.trained_tokens == 0 || (std::isfinite(record.loss) && std::isfinite(record.grad_norm));
  const bool due = record.step % config_.logging.every_steps == 0;
  if (due || execution_->is_stage_done() || !finite) {
    log_->append(record);
    watch_->add_row(record, taken.trained_tokens > 0);
  }
  if (!finite) {
    record_nonfinite(record);
    log_->flush();
    const bool is_left_out = taken.fallback && stage.config->fallback->when.nonfinite;
    if (config_.logging.nonfinite == NonfinitePolicy::stop && !is_left_out) {
      throw RuntimeFailure(fmt::format("step {}: loss {} and gradient norm {}; see /events of {}",
                                       record.step, record.loss, record.grad_norm,
                                       directory_.run_file().string()));
    }
  }
  if (taken.fallback) log_->append(*taken.fallback);
  if (options_.progress) {
    const double spent = now() - stage.began;
    const std::int64_t total = execution_->total_steps();
    const auto steps = static_cast<double>(record.step - stage.began_step);
    const auto batch_tokens =
        static_cast<double>(stage.config->batch_sequences * stage.config->sequence_length);
    options_.progress({record.step, total, stage.config->name, record.loss, record.grad_norm,
                       record.learning_rate, batch_tokens * steps / spent,
                       spent / steps * static_cast<double>(total - record.step)});
  }
}

bool Trainer::evaluation_is_due(const Stage& stage) const {
  const std::int64_t done = execution_->position().stage_step;
  if (stage.evaluator == nullptr || done == 0) return false;
  return execution_->is_stage_done() || done % stage.config->eval->every_steps == 0;
}

void Trainer::record_documents(std::int64_t step, std::int32_t stage, bool in_bf16,
                               const HeldOutLoss& loss) {
  const auto count = static_cast<std::int64_t>(loss.documents.size());
  for (const DocumentLoss& one : loss.documents) {
    log_->append(DocumentRecord{step, stage, in_bf16, loss.text, count,
                                static_cast<std::int32_t>(one.source), one.document, one.tokens,
                                one.nats});
  }
}

bool Trainer::evaluate(Stage& stage) {
  const RunPosition& position = execution_->position();
  StepContext context;
  context.seed = config_.seed;
  context.step = static_cast<std::uint32_t>(position.step);
  EvalRecord record;
  record.step = position.step;
  record.stage = static_cast<std::int32_t>(position.stage);
  Evaluation evaluation;
  say(fmt::format("evaluating after step {}", position.step));
  try {
    evaluation = stage.evaluator->evaluate(context, execution_->is_stage_done());
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
  // Verdicts use the ends of stages only; rows of every evaluation would dominate the run file.
  if (execution_->is_stage_done()) {
    record_documents(record.step, record.stage, false, evaluation.held_out);
  }
  std::string said =
      fmt::format("step {} {} held-out loss {:.5g}", record.step, stage.config->name, record.loss);
  if (record.exact_match_count > 0) {
    said += fmt::format(", exact match {:.3g} of {} problems", record.exact_match,
                        record.exact_match_count);
  }
  for (const Score& score : scores_of(evaluation)) {
    log_->append(ScoreRecord{record.step, record.stage, score.name, score.value, score.count});
    const bool of_a_source =
        score.name.find('/') != std::string::npos && !score.name.starts_with("choice/");
    if (!of_a_source) said += fmt::format(", {} {:.4g}", score.name, score.value);
  }
  if (options_.tell) options_.tell(said);
  return true;
}

bool Trainer::is_worth_bf16(const Stage& stage) const {
  // A recipe without quantization would give the same loss.
  return stage.config->eval && stage.config->eval->weights_in_bf16 && config_.exact.empty() &&
         execution_->position().step > last_in_bf16_ &&
         execution_->parameters().working_dtype() == DType::bf16 &&
         execution_->transformer().has_quantized_operands();
}

bool Trainer::evaluate_in_bf16(std::size_t index) {
  const StageConfig& stage = config_.stages[index];
  const std::int64_t step = execution_->position().step;
  Backend& backend = execution_->backend();
  EvalConfig config = *stage.eval;
  config.sharpness = 0.0;
  config.exact_match = 0;
  config.multiple_choice.clear();
  config.pass_at_k.reset();
  config.rollout.reset();
  StepContext context;
  context.seed = config_.seed;
  context.step = static_cast<std::uint32_t>(step);
  say(fmt::format("evaluating the weights in bf16 after step {}", step));
  const std::size_t mark = backend.memory_mark();
  const EvaluationInputs none;  // a held-out loss reads no other files
  Evaluation evaluation;
  try {
    Transformer transformer(
        backend, execution_->parameters(), config_.model, load_recipe("bf16"),
        {stage.micro_batch_sequences, stage.sequence_length, config_.attention, config_.memory},
        Purpose::inference);
    Evaluator evaluator(backend, execution_->parameters(), transformer, config,
                        *execution_->stages()[index].eval, none, options_.stop);
    evaluation = evaluator.evaluate(context, false);
  } catch (const EvaluationStopped&) {
    backend.release_to(mark);
    say("");
    return false;
  }
  backend.release_to(mark);
  say("");
  std::int64_t tokens = 0;
  for (const auto& source : evaluation.held_out.sources) tokens += source.tokens;
  log_->append(ScoreRecord{step, static_cast<std::int32_t>(index), kLossInBf16,
                           evaluation.held_out.mean, tokens});
  record_documents(step, static_cast<std::int32_t>(index), true, evaluation.held_out);
  if (options_.tell) {
    options_.tell(fmt::format("step {} {} held-out loss of the weights in bf16 {:.5g}", step,
                              stage.name, evaluation.held_out.mean));
  }
  return true;
}

void Trainer::checkpoint() {
  record_checkpoint(true);
  say("copying a checkpoint");
  const double seconds = elapsed();
  log_->flush();  // the rows of a checkpoint's steps precede it on the disk
  execution_->begin_checkpoint(writer_, seconds);
  say("");
}

void Trainer::record_checkpoint(bool wait) {
  if (!writer_.is_under_way() || (!wait && !writer_.is_done())) return;
  say("writing a checkpoint");
  log_->append(writer_.end());
  log_->flush();
  say("");
}

RunOutcome Trainer::run() {
  start_seconds_ = now();
  RunOutcome outcome = RunOutcome::complete;
  try {
    outcome = run_stages();
  } catch (...) {
    try {
      record_checkpoint(true);
    } catch (const std::exception&) {
      // Only the error that ended the run is reported.
    }
    throw;
  }
  record_checkpoint(true);
  return outcome;
}

RunOutcome Trainer::run_stages() {
  say("opening the run file");
  if (!open_log()) return RunOutcome::complete;
  if (options_.opened) options_.opened(elapsed(), execution_->position().step);
  while (!execution_->is_complete()) {
    say("preparing stage " + execution_->stage().name);
    Stage stage = begin_stage();
    say("");
    const bool missing = evaluation_is_due(stage) && last_evaluation_ < execution_->position().step;
    if (missing && !evaluate(stage)) return RunOutcome::interrupted;
    const std::int64_t every = config_.logging.checkpoint_every_steps;
    while (!execution_->is_stage_done()) {
      if (execution_->is_recipe_due()) change_recipe(stage);
      train_step(stage);
      record_checkpoint(false);
      if (evaluation_is_due(stage)) evaluate(stage);
      const bool stop = options_.stop != nullptr && options_.stop->load();
      const bool due = every > 0 && execution_->position().stage_step % every == 0;
      if (stop || due || execution_->is_stage_done()) checkpoint();
      if (stop) return RunOutcome::interrupted;
    }
    stage.evaluator.reset();
    const bool in_bf16 = is_worth_bf16(stage);
    const auto index = static_cast<std::size_t>(execution_->position().stage);
    execution_->end_stage();
    if (in_bf16 && !evaluate_in_bf16(index)) return RunOutcome::interrupted;
  }
  const std::uint64_t weights = execution_->parameters().hash();
  record_checkpoint(true);
  log_->complete(weights);
  return RunOutcome::complete;
}

}  // namespace fp8lab
