#include "src/train/run_check.hpp"

#include <fmt/format.h>

#include "emulation/api/error.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/train/plan.hpp"

namespace fp8lab {

Backend& RunCheck::backend(const std::string& name) {
  std::unique_ptr<Backend>& backend = backends_[name];
  if (backend == nullptr) backend = make_backend_(name);
  return *backend;
}

const DataSources& RunCheck::sources(const DataConfig& config, std::int64_t vocab_size,
                                     const std::string& where) {
  for (const Opened& opened : opened_) {
    if (opened.config == config && opened.vocab_size == vocab_size) return *opened.sources;
  }
  auto sources = std::make_unique<DataSources>(open_sources(config, vocab_size, where));
  opened_.push_back({config, vocab_size, std::move(sources)});
  return *opened_.back().sources;
}

void RunCheck::operator()(const RunConfig& config) {
  if (!config.init_from.empty() && !std::filesystem::exists(config.init_from)) {
    throw Error(fmt::format("init_from: {} does not exist", config.init_from.string()));
  }
  std::vector<StageSources> stages;
  for (const StageConfig& stage : config.stages) {
    const std::string where = "stage " + stage.name;
    validate_stage(config, stage, load_recipe(stage.recipe.empty() ? config.recipe : stage.recipe),
                   backend(config.backend));
    stages.push_back({where, &sources(stage.data, config.model.vocab_size, where)});
    if (!stage.eval) continue;
    const DataSources& held_out = sources(stage.eval->data, config.model.vocab_size, where);
    stages.push_back({where, &held_out});
    check_evaluation(*stage.eval, held_out, config.model);
  }
  check_one_tokenizer(stages);
}

}  // namespace fp8lab
