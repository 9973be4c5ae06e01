#include "src/train/run_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/state_rules.hpp"
#include "src/config/config_difference.hpp"
#include "src/config/reading/hub_cache.hpp"
#include "src/config/reading/run_document.hpp"
#include "src/config/recipe/stage_recipes.hpp"
#include "src/config/tables/model_table.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/evaluation/held_out.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/missing_file.hpp"
#include "src/io/hash.hpp"
#include "src/objectives/objective.hpp"
#include "src/train/checkpoint/checkpoint.hpp"
#include "src/train/checkpoint/identity.hpp"
#include "src/train/checkpoint/start_vocabulary.hpp"
#include "src/train/plan/memory_plan.hpp"

namespace fp8lab {
namespace {

/// Key of everything that determines the initial weights of a run.
std::string start_key(const RunConfig& config) {
  std::string key =
      fmt::format("{}\n{}", config.init_from.string(), model_table_text(config.model));
  if (!config.growth) return key;
  return key + fmt::format("{} {} {}", config.growth->from_layers,
                           static_cast<int>(config.growth->order), config.growth->silent_copies);
}

void add_note(std::string line, std::vector<std::string>& notes) {
  const bool is_known = std::find(notes.begin(), notes.end(), line) != notes.end();
  if (!line.empty() && !is_known) notes.push_back(std::move(line));
}

/// Compares token ids only: masks and the width of ids in a file do not make documents differ.
std::uint64_t hash_of(const DocumentView& document) {
  const auto size = static_cast<std::size_t>(document.size);
  if (document.token_bytes == sizeof(std::int32_t)) {
    return xxh3(document.tokens, size * sizeof(std::int32_t));
  }
  std::vector<std::int32_t> ids(size);
  for (std::size_t i = 0; i < size; ++i) ids[i] = document.token(static_cast<std::int64_t>(i));
  return xxh3(ids.data(), size * sizeof(std::int32_t));
}

std::unordered_set<std::uint64_t> hashes_of(const DataSources& data) {
  std::unordered_set<std::uint64_t> hashes;
  for (const auto& corpus : data.corpora) {
    for (std::int64_t i = 0; i < corpus->size(); ++i) hashes.insert(hash_of(corpus->document(i)));
  }
  return hashes;
}

/// Returns an empty text if no document is in both.
std::string overlap_note(const std::string& stage, const OpenedStage& opened) {
  if (!opened.eval) return {};
  std::unordered_set<std::uint64_t> left = hashes_of(*opened.eval);
  const std::size_t all = left.size();
  for (const auto& corpus : opened.train.corpora) {
    for (std::int64_t i = 0; i < corpus->size() && !left.empty(); ++i) {
      left.erase(hash_of(corpus->document(i)));
    }
  }
  if (left.size() == all) return {};
  return fmt::format(
      "stage {}: {} of the {} different held-out documents are trained on as well, so the held-out "
      "loss is in part a training loss",
      stage, all - left.size(), all);
}

bool rounds_nothing(const Recipe& recipe) {
  const auto is_plain = [](const LinearRecipe& linear) {
    return std::none_of(kSlots.begin(), kSlots.end(),
                        [&](Slot slot) { return linear.slot(slot).is_cast(); });
  };
  return is_plain(recipe.linear) &&
         std::all_of(recipe.overrides.begin(), recipe.overrides.end(),
                     [&](const RecipeOverride& other) { return is_plain(other.recipe); });
}

void add_recipe_notes(const RunConfig& config, const StageConfig& stage, const OpenedStage& opened,
                      std::vector<std::string>& notes) {
  const std::vector<StageRecipe> planned = recipes_of(config, stage);
  for (std::size_t i = 1; i < planned.size(); ++i) {
    if (planned[i].is_fallback) continue;
    if (opened.recipes[i].hash != opened.recipes[i - 1].hash) continue;
    add_note(fmt::format("stage {}: recipe_at after {} steps changes nothing: {} is the recipe "
                         "before it as well",
                         stage.name, planned[i].after, planned[i].name),
             notes);
  }
  if (!stage.fallback) return;
  const auto end = opened.recipes.end() - 1;  // recipe of the fallback
  if (std::all_of(opened.recipes.begin(), end,
                  [&](const Recipe& recipe) { return recipe.hash == end->hash; })) {
    add_note(fmt::format("stage {}: the fallback changes nothing: {} is the stage's recipe as well",
                         stage.name, stage.fallback->recipe),
             notes);
    return;
  }
  if (stage.fallback->when.saturation > 0 &&
      std::all_of(opened.recipes.begin(), end, rounds_nothing)) {
    add_note(fmt::format("stage {}: fallback.when.saturation never holds: {} rounds no operand to "
                         "a format that saturates",
                         stage.name, opened.recipes.front().name),
             notes);
  }
}

/// Returns an empty text unless a final rate is without effect, or above the peak.
std::string final_rate_note(const StageConfig& stage) {
  const LearningRateSchedule& rate = stage.learning_rate;
  const bool decays = rate.kind == ScheduleKind::cosine || rate.kind == ScheduleKind::linear ||
                      (rate.kind == ScheduleKind::wsd && rate.decay_steps > 0);
  const bool is_default = rate.final == LearningRateSchedule{}.final;
  if (decays && rate.final > rate.peak) {
    return fmt::format("stage {}: learning_rate.final = {}{} is above peak = {}: the rate rises",
                       stage.name, rate.final, is_default ? ", its default," : "", rate.peak);
  }
  if (decays || is_default || rate.final == rate.peak) return {};
  return fmt::format("stage {}: learning_rate.final = {} has no effect: {}", stage.name, rate.final,
                     rate.kind == ScheduleKind::wsd ? "decay_steps is 0" : "the rate is constant");
}

/// Returns a note on JSON files that are read as text; empty if there are none.
std::string kind_note(const std::string& where, const DataConfig& data) {
  for (const SourceConfig& source : data.sources) {
    if (source.kind != DataKind::text) continue;
    for (const std::filesystem::path& path : source.paths) {
      const std::string end = path.extension().string();
      if (end != ".jsonl" && end != ".json") continue;
      return fmt::format(
          "{}: {} is read as text, braces and keys included; kind = \"jsonl\" reads its records",
          where, path.string());
    }
  }
  return {};
}

/// Returns a note on keys of the model that differ from the model of the initial weights; empty
/// without.
std::string start_note(const RunConfig& config) {
  if (config.init_from.empty()) return {};
  try {
    const std::vector<std::string> different =
        differences_from_start(config.init_from.string(), config.model, config.growth.has_value());
    std::vector<std::string> shown;
    for (const std::string& entry : different) {
      if (!entry.starts_with("model.lora")) shown.push_back(entry);
    }
    if (shown.empty()) return {};
    return fmt::format(
        "init_from: the run states other values than the model of its initial weights, which "
        "begin as another function: {}",
        join_differences(shown));
  } catch (const Error&) {
    return {};  // opening the weights says what is wrong with the file
  }
}

}  // namespace

std::vector<std::string> run_notes(const RunConfig& config, const std::vector<OpenedStage>& stages,
                                   const ModelVocabulary& model) {
  std::vector<std::string> notes = config.notes;
  add_note(start_note(config), notes);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const OpenedStage& opened = stages[i];
    for (std::string& line : vocabulary_notes(opened.train, model)) add_note(line, notes);
    if (opened.eval) {
      for (std::string& line : vocabulary_notes(*opened.eval, model)) add_note(line, notes);
    }
    add_note(overlap_note(config.stages[i].name, opened), notes);
    add_note(final_rate_note(config.stages[i]), notes);
    const std::string where = "stage " + config.stages[i].name;
    add_note(kind_note(where, config.stages[i].data), notes);
    if (opened.eval)
      add_note(kind_note(where + ", evaluation", config.stages[i].eval->data), notes);
    if (opened.eval) {
      const StageConfig& stage = config.stages[i];
      const std::int64_t micro = stage.micro_batch_sequences;
      const std::int64_t sequences = (stage.eval->sequences + micro - 1) / micro * micro;
      add_note(repetition_note(*opened.eval, sequences, stage.sequence_length,
                               fmt::format("stage {}: eval.sequences", stage.name)),
               notes);
    }
    add_recipe_notes(config, config.stages[i], opened, notes);
  }
  return notes;
}

std::vector<OpenedStage> open_stages(const RunConfig& config, const Backend* backend,
                                     const ModelVocabulary& model, const OpenData& open) {
  std::vector<OpenedStage> stages;
  for (const StageConfig& stage : config.stages) {
    OpenedStage& opened = stages.emplace_back();
    for (const StageRecipe& of : recipes_of(config, stage)) {
      opened.recipes.push_back(load_recipe(of.name, config.recorded));
      if (backend != nullptr) validate_stage(config, stage, opened.recipes.back(), *backend);
    }
  }
  std::vector<StageSources> sources;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageConfig& stage = config.stages[i];
    OpenedStage& opened = stages[i];
    const std::string where = "stage " + stage.name;
    opened.train = open(stage.data, model, where, make_objective(stage.objective)->own_columns());
    if (stage.eval) opened.eval = open(stage.eval->data, model, where, {});
    check_targets(opened.train, stage.sequence_length, where);
    sources.push_back({where, &opened.train});
    if (!opened.eval) continue;
    check_targets(*opened.eval, stage.sequence_length, where + ", evaluation");
    sources.push_back({where, &*opened.eval});
  }
  check_one_tokenizer(sources);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (!stages[i].eval) continue;
    const StageConfig& stage = config.stages[i];
    stages[i].inputs =
        read_evaluation_inputs(*stage.eval, *stages[i].eval, config.model, stage.sequence_length,
                               "stage " + stage.name + ", evaluation", config.recorded);
  }
  return stages;
}

std::vector<StageContents> contents_of(const std::vector<OpenedStage>& stages) {
  std::vector<StageContents> contents;
  for (const OpenedStage& stage : stages) {
    StageContents content{{}, &stage.train, stage.eval ? &*stage.eval : nullptr, &stage.inputs};
    for (const Recipe& recipe : stage.recipes) content.recipes.push_back(recipe.hash);
    contents.push_back(std::move(content));
  }
  return contents;
}

std::optional<InitialState> open_start(const RunConfig& config,
                                       const std::filesystem::path& start) {
  if (start.empty()) {
    if (!config.growth) return std::nullopt;
    throw InputError({.where = "growth",
                      .reason = "there is nothing to grow",
                      .accepted = "with init_from or --init-from"});
  }
  if (!is_present(start)) {
    require_model_path(start);
    throw InputError({.where = "init_from",
                      .found = start.string(),
                      .nearest = did_you_mean_model(start),
                      .reason = "does not exist" + where_looked(start),
                      .accepted = kAcceptedModels});
  }
  return open_initial_state(start, config.model, config.growth, config.seed);
}

Backend& RunCheck::backend(const std::string& name) {
  std::unique_ptr<Backend>& backend = backends_[name];
  if (backend == nullptr) backend = make_backend_(name);
  return *backend;
}

const DataSources& RunCheck::sources(const DataConfig& config, const ModelVocabulary& model,
                                     const std::string& where,
                                     std::span<const ColumnSpec> columns) {
  std::vector<std::string> names;
  for (const ColumnSpec& column : columns) names.emplace_back(column.name);
  for (const Opened& opened : opened_) {
    const bool is_same =
        opened.config == config && opened.model == model && opened.columns == names;
    if (is_same) return *opened.sources;
  }
  auto sources = std::make_unique<DataSources>(open_sources(config, model, where, columns));
  opened_.push_back({config, model, std::move(names), std::move(sources)});
  return *opened_.back().sources;
}

void RunCheck::check(const RunConfig& config, bool start_is_to_come) {
  // In the order of a run, so that both report the same fault first.
  const ModelVocabulary model = start_vocabulary(config.init_from, config.model.vocab_size);
  const std::vector<OpenedStage> stages =
      open_stages(config, &backend(config.backend), model, opener());
  for (std::string& note : run_notes(config, stages, model)) add_note(std::move(note), notes_);
  const std::string key = start_key(config);
  if (start_is_to_come || sound_starts_.count(key) != 0) return;
  if (const std::optional<InitialState> start = open_start(config, config.init_from)) {
    require_finite(*start->weights);
  }
  sound_starts_.insert(key);
}

void RunCheck::check(const RunConfig& config, const RunDirectory& directory, bool resume) {
  directory.check(resume);
  check(config);
  if (!resume) return;
  // Random weights are determined by the rest.
  const RunStatus status = directory.status_of(identity(config), config, config.init_from.empty());
  if (!status.complete) directory.find_checkpoint(status, status.meta.identity, config);
}

OpenData RunCheck::opener() {
  return
      [this](const DataConfig& data, const ModelVocabulary& model, const std::string& where,
             std::span<const ColumnSpec> columns) { return sources(data, model, where, columns); };
}

const Identity& RunCheck::initial_state(const RunConfig& config) {
  const OptimizerConfig storage = storage_of(config);
  const std::string key = fmt::format("{}\n{}\n{}\n{}", start_key(config), config.backend,
                                      state_label(storage.weights), config.seed);
  if (const auto known = initial_states_.find(key); known != initial_states_.end()) {
    return known->second;
  }
  Backend& memory = backend(config.backend);
  const std::size_t mark = memory.memory_mark();
  const InitialState initial =
      open_initial_state(config.init_from, config.model, config.growth, config.seed);
  Identity state;
  {
    // Only master weights count; BF16 masters have no working copy of another type.
    const bool is_bf16 = storage.weights == plain_state(DType::bf16);
    Parameters weights(memory, config.model, storage, is_bf16 ? DType::bf16 : DType::f32,
                       Purpose::inference);
    load_parameters(*initial.weights, config.init_from.string(), weights);
    weights.round_weights(config.seed);
    state.emplace_back(kInitialWeights, hex16(weights.hash()));
  }
  memory.release_to(mark);
  if (!initial.histories.empty()) {
    state.emplace_back(kInitialHistories, hex16(hash_of(initial.histories)));
  }
  return initial_states_.emplace(key, std::move(state)).first->second;
}

Identity RunCheck::identity(const RunConfig& config) {
  const ModelVocabulary model = start_vocabulary(config.init_from, config.model.vocab_size);
  const std::vector<OpenedStage> stages = open_stages(config, nullptr, model, opener());
  Identity identity = make_identity(config, contents_of(stages), "");
  if (config.init_from.empty()) return identity;
  const Identity& state = initial_state(config);
  identity.insert(identity.end(), state.begin(), state.end());
  return identity;
}

}  // namespace fp8lab
