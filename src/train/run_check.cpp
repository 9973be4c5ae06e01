#include "src/train/run_check.hpp"

#include <fmt/format.h>

#include <deque>

#include "emulation/base/error.hpp"
#include "emulation/spec/state_rules.hpp"
#include "src/config/model_table.hpp"
#include "src/config/stage_recipes.hpp"
#include "src/error_sources/run_sources.hpp"
#include "src/io/file_kind.hpp"
#include "src/io/hash.hpp"
#include "src/train/checkpoint.hpp"
#include "src/train/identity.hpp"
#include "src/train/memory_plan.hpp"
#include "src/train/start_vocabulary.hpp"

namespace fp8lab {

EvaluationInputs check_stage_data(const RunConfig& run, const StageConfig& stage,
                                  const DataSources& train, const DataSources* eval) {
  const std::string where = "stage " + stage.name;
  check_targets(train, stage.sequence_length, where);
  if (eval == nullptr) return {};
  check_targets(*eval, stage.sequence_length, where + ", evaluation");
  return read_evaluation_inputs(*stage.eval, *eval, run.model, stage.sequence_length,
                                run.recorded);
}

void check_growth(const RunConfig& config, const std::filesystem::path& start) {
  if (!start.empty() || !config.growth) return;
  throw Error("growth: there is nothing to grow; accepted: with init_from or --init-from");
}

Backend& RunCheck::backend(const std::string& name) {
  std::unique_ptr<Backend>& backend = backends_[name];
  if (backend == nullptr) backend = make_backend_(name);
  return *backend;
}

const DataSources& RunCheck::sources(const DataConfig& config, const ModelVocabulary& model,
                                     const std::string& where) {
  for (const Opened& opened : opened_) {
    if (opened.config == config && opened.model == model) return *opened.sources;
  }
  auto sources = std::make_unique<DataSources>(open_sources(config, model, where));
  opened_.push_back({config, model, std::move(sources)});
  return *opened_.back().sources;
}

void RunCheck::check(const RunConfig& config) {
  if (!config.init_from.empty() && !is_present(config.init_from)) {
    throw Error(fmt::format("init_from: {} does not exist", config.init_from.string()));
  }
  const ModelVocabulary model = start_vocabulary(config.init_from, config.model.vocab_size);
  std::vector<StageSources> stages;
  for (const StageConfig& stage : config.stages) {
    const std::string where = "stage " + stage.name;
    for (const StageRecipe& recipe : recipes_of(config, stage)) {
      validate_stage(config, stage, load_recipe(recipe.name, config.recorded), backend(config.backend));
    }
    const DataSources& train = sources(stage.data, model, where);
    const DataSources* const held_out =
        stage.eval ? &sources(stage.eval->data, model, where) : nullptr;
    check_stage_data(config, stage, train, held_out);
    stages.push_back({where, &train});
    if (held_out != nullptr) stages.push_back({where, held_out});
  }
  check_one_tokenizer(stages);
}

const Identity& RunCheck::initial_state(const RunConfig& config) {
  const OptimizerConfig storage = storage_of(config);
  std::string key =
      fmt::format("{}\n{}\n{}\n{}\n{}", config.backend, config.init_from.string(),
                  model_table_text(config.model), state_label(storage.weights), config.seed);
  if (config.growth) {
    key += fmt::format("{} {} {}", config.growth->from_layers,
                       static_cast<int>(config.growth->order), config.growth->silent_copies);
  }
  if (const auto known = initial_states_.find(key); known != initial_states_.end()) {
    return known->second;
  }
  Backend& memory = backend(config.backend);
  const std::size_t mark = memory.memory_mark();
  const InitialState initial = open_initial_state(config.init_from, config.model, config.growth);
  Identity state;
  {
    // Masters alone count; those in BF16 have working copies of no other type.
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
  std::vector<StageContents> contents;
  std::deque<EvaluationInputs> inputs;
  for (const StageConfig& stage : config.stages) {
    const std::string where = "stage " + stage.name;
    StageContents content;
    for (const StageRecipe& recipe : recipes_of(config, stage)) {
      content.recipes.push_back(load_recipe(recipe.name, config.recorded).hash);
    }
    content.train = &sources(stage.data, model, where);
    if (stage.eval) content.eval = &sources(stage.eval->data, model, where);
    inputs.push_back(check_stage_data(config, stage, *content.train, content.eval));
    content.inputs = &inputs.back();
    contents.push_back(content);
  }
  Identity identity = make_identity(config, contents, "");
  if (config.init_from.empty()) return identity;
  const Identity& state = initial_state(config);
  identity.insert(identity.end(), state.begin(), state.end());
  return identity;
}

}  // namespace fp8lab
