// Run files: TOML to RunConfig and back.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/config/config.hpp"
#include "src/config/config_names.hpp"
#include "src/config/experiments.hpp"
#include "src/config/hugging_face.hpp"
#include "src/config/model_table.hpp"
#include "src/config/run_document.hpp"
#include "src/config/run_name.hpp"
#include "src/config/run_text.hpp"
#include "src/config/size_limits.hpp"
#include "src/config/toml_reader.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/hash.hpp"

namespace fp8lab {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 40;
constexpr std::int64_t kLargestToken = 0x7fffffff;
constexpr std::size_t kLargestMixture = 256;

OptimizerConfig read_optimizer(TomlReader& document) {
  OptimizerConfig optimizer;
  std::optional<TomlReader> table = document.table("optimizer");
  if (!table) return optimizer;
  AdamWSpec& adamw = optimizer.adamw;
  const auto number = [&](const char* key, float fallback, double minimum, double maximum) {
    return static_cast<float>(table->number(key, fallback, minimum, maximum));
  };
  adamw.beta1 = number("beta1", adamw.beta1, 0.0, 0.99999);
  adamw.beta2 = number("beta2", adamw.beta2, 0.0, 0.99999);
  adamw.epsilon = number("epsilon", adamw.epsilon, 1e-30, 1.0);
  adamw.weight_decay = number("weight_decay", adamw.weight_decay, 0.0, 10.0);
  adamw.clip_norm = number("clip_norm", adamw.clip_norm, 0.0, 1e30);
  optimizer.first_moment = table->choice("first_moment", kStorageNames, optimizer.first_moment);
  optimizer.second_moment = table->choice("second_moment", kStorageNames, optimizer.second_moment);
  table->finish();
  return optimizer;
}

LoggingConfig read_logging(TomlReader& document) {
  LoggingConfig logging;
  std::optional<TomlReader> table = document.table("logging");
  if (!table) return logging;
  logging.every_steps = table->integer("every_steps", logging.every_steps, 1, kLarge);
  logging.statistics_every_steps =
      table->integer("statistics_every_steps", logging.statistics_every_steps, 0, kLarge);
  logging.checkpoint_every_steps =
      table->integer("checkpoint_every_steps", logging.checkpoint_every_steps, 0, kLarge);
  logging.hash_every_step = table->boolean("hash_every_step", logging.hash_every_step);
  logging.nonfinite = table->choice("nonfinite", kNonfinitePolicyNames, logging.nonfinite);
  table->finish();
  return logging;
}

AttentionConfig read_attention(TomlReader& document) {
  AttentionConfig attention;
  std::optional<TomlReader> table = document.table("attention");
  if (!table) return attention;
  attention.kv_tile = table->integer("kv_tile", attention.kv_tile, 1, 65536);
  attention.q_tile = table->integer("q_tile", attention.q_tile, 1, 65536);
  table->finish();
  return attention;
}

void read_range(TomlReader& table, SourceConfig& source) {
  const toml::node* node = table.node("range");
  if (node == nullptr) return;
  const toml::array* list = node->as_array();
  const bool pair =
      list != nullptr && list->size() == 2 && (*list)[0].is_number() && (*list)[1].is_number();
  if (pair) {
    source.range_begin = *(*list)[0].value<double>();
    source.range_end = *(*list)[1].value<double>();
  }
  if (!pair || !(0.0 <= source.range_begin && source.range_begin < source.range_end &&
                 source.range_end <= 1.0)) {
    table.fail("range",
               "accepted: [begin, end] with 0 <= begin < end <= 1, fractions of the "
               "documents");
  }
}

/// A string, or a list of strings.
void read_paths(TomlReader& table, SourceConfig& source) {
  const toml::node* node = table.node("path");
  if (node == nullptr) return;
  source.paths.clear();
  if (node->is_string()) {
    source.paths.emplace_back(*node->value<std::string>());
  } else {
    for (const std::string& path : table.texts("path")) source.paths.emplace_back(path);
  }
  const auto empty = [](const std::filesystem::path& path) { return path.empty(); };
  if (source.paths.empty() || std::any_of(source.paths.begin(), source.paths.end(), empty)) {
    table.fail("path", "accepted: a file, or a list of files");
  }
}

void read_delimiter(TomlReader& table, DocumentDelimiter& delimiter) {
  delimiter.begin = table.integer("document_begin", delimiter.begin, 0, kLargestToken);
  delimiter.end = table.integer("document_end", delimiter.end, 0, kLargestToken);
  if (delimiter.begin >= 0 && delimiter.end >= 0) {
    table.fail("document_end",
               "documents are cut either at their first or at their last token; "
               "accepted: document_begin or document_end");
  }
}

/// Rejects the keys of other kinds.
void check_source_keys(const TomlReader& table, const SourceConfig& source, DataForm form) {
  if (source.kind == DataKind::arithmetic) {
    if (table.has("path")) table.fail("path", "kind = \"arithmetic\" reads no file");
  } else {
    for (const char* key : {"families", "problems", "corpus_seed", "held_out"}) {
      if (table.has(key)) table.fail(key, "is for kind = \"arithmetic\"");
    }
    if (source.paths.empty()) {
      table.fail("path", fmt::format("missing; kind = \"{}\" reads a file",
                                     word_for(kDataKindNames, source.kind)));
    }
  }
  for (const char* key : {"document_begin", "document_end"}) {
    if (source.kind != DataKind::tokens && table.has(key)) {
      table.fail(key, "is for kind = \"tokens\"");
    }
  }
  if (source.kind == DataKind::text && form == DataForm::prompt_response) {
    table.fail("form", "plain text has no prompts; accepted: running_text, or kind = \"jsonl\"");
  }
}

// The keys of one source; `defaults` holds what absent keys mean.
SourceConfig read_source(TomlReader& table, const SourceConfig& defaults, DataForm form) {
  SourceConfig source;
  source.kind = table.choice("kind", kDataKindNames, defaults.kind);
  if (source.kind == defaults.kind) source = defaults;
  read_range(table, source);
  read_paths(table, source);
  read_delimiter(table, source.delimiter);
  if (table.has("families")) source.families = table.texts("families");
  table.texts("families");
  source.problems = table.integer("problems", source.problems, 1, kMostProblems);
  source.corpus_seed = static_cast<std::uint64_t>(
      table.integer("corpus_seed", static_cast<std::int64_t>(source.corpus_seed), 0));
  source.held_out = table.boolean("held_out", source.held_out);
  check_source_keys(table, source, form);
  return source;
}

// `defaults` holds what absent keys mean; those of a source only where the table describes one.
DataConfig read_data(TomlReader& table, const DataConfig& defaults) {
  DataConfig data;
  data.form = table.choice("form", kDataFormNames, defaults.form);
  std::vector<TomlReader> parts = table.tables("sources");
  if (parts.empty() && table.has("sources")) table.fail("sources", "accepted: at least one");
  if (parts.empty()) {
    const bool one = defaults.sources.size() == 1;
    data.sources = {read_source(table, one ? defaults.sources.front() : SourceConfig{}, data.form)};
    table.finish();
    return data;
  }
  table.finish();
  data.sources.clear();
  for (TomlReader& part : parts) {
    SourceConfig source = read_source(part, SourceConfig{}, data.form);
    source.weight = part.number("weight", source.weight, 1e-6, 1e6);
    part.finish();
    data.sources.push_back(std::move(source));
  }
  if (data.sources.size() == 1) data.sources.front().weight = 1.0;
  if (data.sources.size() > kLargestMixture) {
    table.fail("sources", fmt::format("{} of them; accepted: at most {}", data.sources.size(),
                                      kLargestMixture));
  }
  return data;
}

LearningRateSchedule read_learning_rate(TomlReader& stage, std::int64_t steps) {
  LearningRateSchedule rate;
  rate.warmup_steps = std::min(rate.warmup_steps, steps);
  std::optional<TomlReader> table = stage.table("learning_rate");
  if (!table) return rate;
  rate.kind = table->choice("kind", kScheduleKindNames, rate.kind);
  rate.peak = table->number("peak", rate.peak, 0.0, 10.0);
  rate.final = table->number("final", rate.final, 0.0, 10.0);
  rate.warmup_steps = table->integer("warmup_steps", rate.warmup_steps, 0, kLarge);
  rate.decay_steps = table->integer("decay_steps", rate.decay_steps, 0, kLarge);
  table->finish();
  if (table->has("decay_steps") && rate.kind != ScheduleKind::wsd) {
    table->fail("decay_steps", "is for kind = \"wsd\"");
  }
  if (rate.warmup_steps + rate.decay_steps > steps) {
    table->fail("warmup_steps",
                fmt::format("warmup_steps = {} and decay_steps = {} do not fit into "
                            "steps = {}",
                            rate.warmup_steps, rate.decay_steps, steps));
  }
  return rate;
}

PlantedOutliers read_planted_outliers(TomlReader& stage, const ModelConfig& model) {
  PlantedOutliers planted;
  std::optional<TomlReader> table = stage.table("planted_outliers");
  if (!table) return planted;
  planted.channels = table->integer("channels", planted.channels, 0, model.hidden_size);
  planted.gain = table->number("gain", planted.gain, 0x1p-60, 0x1p60);
  table->finish();
  int exponent = 0;
  if (std::frexp(planted.gain, &exponent) != 0.5) {
    table->fail("gain", fmt::format("{} is no power of two, so planting it would round; accepted: "
                                    "for example 4096",
                                    planted.gain));
  }
  return planted;
}

void check_recipe_name(const TomlReader& reader, const std::string& recipe) {
  if (!recipe.empty()) load_recipe(find_experiment("recipes", recipe, reader.where("recipe")));
}

SamplingConfig read_sampling(TomlReader& table) {
  SamplingConfig sampling;
  sampling.temperature = table.number("temperature", sampling.temperature, 0.0, 1000.0);
  sampling.top_k = table.integer("top_k", sampling.top_k, 0, kLarge);
  sampling.top_p = table.number("top_p", sampling.top_p, 0x1p-20, 1.0);
  sampling.min_new_tokens = table.integer("min_new_tokens", sampling.min_new_tokens, 0, 65536);
  sampling.seed = static_cast<std::uint64_t>(
      table.integer("seed", static_cast<std::int64_t>(sampling.seed), 0));
  return sampling;
}

std::optional<PassAtKConfig> read_pass_at_k(TomlReader& eval) {
  std::optional<TomlReader> table = eval.table("pass_at_k");
  if (!table) return std::nullopt;
  PassAtKConfig pass;
  pass.problems = table->integer("problems", pass.problems, 1, 1 << 20);
  pass.samples = table->integer("samples", pass.samples, 1, 65536);
  if (const toml::node* node = table->node("k")) {
    pass.k.clear();
    const toml::array* list = node->as_array();
    for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
      pass.k.push_back((*list)[i].value_exact<std::int64_t>().value_or(0));
    }
  }
  const auto fits = [&](std::int64_t k) { return 1 <= k && k <= pass.samples; };
  if (pass.k.empty() || !std::all_of(pass.k.begin(), pass.k.end(), fits)) {
    table->fail("k",
                fmt::format("accepted: a list of integers from 1 to samples = {}", pass.samples));
  }
  pass.sampling = read_sampling(*table);
  table->finish();
  return pass;
}

std::optional<RolloutConfig> read_rollout(TomlReader& eval) {
  std::optional<TomlReader> table = eval.table("rollout");
  if (!table) return std::nullopt;
  RolloutConfig rollout;
  rollout.recipe = table->text("recipe", "");
  rollout.prompts = table->integer("prompts", rollout.prompts, 1, 1 << 20);
  rollout.clip = table->number("clip", rollout.clip, 0x1p-20);
  rollout.bucket = table->integer("bucket", rollout.bucket, 1, kLarge);
  rollout.sampling = read_sampling(*table);
  table->finish();
  check_recipe_name(*table, rollout.recipe);
  return rollout;
}

std::optional<EvalConfig> read_eval(TomlReader& stage, const DataConfig& data) {
  std::optional<TomlReader> table = stage.table("eval");
  if (!table) return std::nullopt;
  EvalConfig eval;
  eval.every_steps = table->integer("every_steps", eval.every_steps, 1, kLarge);
  eval.sequences = table->integer("sequences", eval.sequences, 1, kLarge);
  eval.exact_match = table->integer("exact_match", eval.exact_match, 0, kLarge);
  eval.max_new_tokens = table->integer("max_new_tokens", eval.max_new_tokens, 1, 65536);
  eval.multiple_choice = table->text("multiple_choice", "");
  eval.pass_at_k = read_pass_at_k(*table);
  eval.rollout = read_rollout(*table);
  std::optional<TomlReader> own = table->table("data");
  table->finish();
  // The generator can hold problems out; a file cannot tell which of its documents to keep back.
  DataConfig defaults = data;
  const auto generated = [](const SourceConfig& source) {
    return source.kind == DataKind::arithmetic;
  };
  for (SourceConfig& source : defaults.sources) {
    source.held_out = generated(source);
    source.range_begin = 0.0;
    source.range_end = 1.0;
  }
  if (own) {
    eval.data = read_data(*own, defaults);
  } else if (std::all_of(data.sources.begin(), data.sources.end(), generated)) {
    eval.data = defaults;
  } else {
    table->fail("data", "missing; a stage that reads files names its held-out documents");
  }
  const bool has_prompts = eval.data.form == DataForm::prompt_response;
  for (const auto& [key, asks] : {std::pair{"exact_match", eval.exact_match > 0},
                                  std::pair{"pass_at_k", eval.pass_at_k.has_value()},
                                  std::pair{"rollout", eval.rollout.has_value()}}) {
    if (asks && !has_prompts) {
      table->fail(key, "asks prompts; accepted: data.form = \"prompt_response\", or none");
    }
  }
  return eval;
}

StageConfig read_stage(TomlReader& table, const ModelConfig& model) {
  StageConfig stage;
  stage.name = table.text("name", "");
  const bool plain =
      !stage.name.empty() && stage.name.find_first_not_of(
                                 "abcdefghijklmnopqrstuvwxyz"
                                 "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string::npos;
  if (!plain) {
    table.refuse("name", stage.name.empty() ? "missing" : "'" + stage.name + "'",
                 "letters, digits, '_' and '-'");
  }
  stage.kind = table.choice("kind", kStageKindNames, stage.kind);
  stage.steps = table.integer("steps", stage.steps, 1, kLarge);
  stage.batch_sequences = table.integer("batch_sequences", stage.batch_sequences, 1, kLarge);
  stage.micro_batch_sequences =
      table.integer("micro_batch_sequences", stage.batch_sequences, 1, kLarge);
  stage.sequence_length = table.integer("sequence_length", stage.sequence_length, 2, kLarge);
  stage.recipe = table.text("recipe", "");
  stage.reset_optimizer = table.boolean("reset_optimizer", stage.reset_optimizer);
  stage.reset_amax_history = table.boolean("reset_amax_history", stage.reset_amax_history);
  stage.restart_data = table.boolean("restart_data", stage.restart_data);
  stage.data.form =
      stage.kind == StageKind::sft ? DataForm::prompt_response : DataForm::running_text;
  if (std::optional<TomlReader> data = table.table("data")) {
    stage.data = read_data(*data, stage.data);
  }
  stage.learning_rate = read_learning_rate(table, stage.steps);
  stage.planted_outliers = read_planted_outliers(table, model);
  stage.eval = read_eval(table, stage.data);
  table.finish();
  check_recipe_name(table, stage.recipe);
  if (stage.batch_sequences % stage.micro_batch_sequences != 0) {
    table.fail("micro_batch_sequences",
               fmt::format("{} does not divide batch_sequences = {}", stage.micro_batch_sequences,
                           stage.batch_sequences));
  }
  if (stage.sequence_length > model.max_position_embeddings) {
    table.fail("sequence_length",
               fmt::format("{} exceeds model.max_position_embeddings = {}", stage.sequence_length,
                           model.max_position_embeddings));
  }
  check_stage_size(table, stage, model);
  return stage;
}

void read_stages(TomlReader& document, RunConfig& config) {
  std::set<std::string> names;
  for (TomlReader& table : document.tables("stages")) {
    config.stages.push_back(read_stage(table, config.model));
    if (!names.insert(config.stages.back().name).second) {
      table.fail("name", fmt::format("two stages are called '{}'", config.stages.back().name));
    }
  }
  check_steps(document, config.stages);
  if (config.stages.empty()) {
    document.refuse("stages", "missing", "at least one [[stages]] table");
  }
}

void forget_paths(DataConfig& data) {
  for (SourceConfig& source : data.sources) source.paths.assign(source.paths.empty() ? 0 : 1, "");
}

/// What determines the run and is written in the configuration itself.
RunConfig without_references(const RunConfig& config) {
  RunConfig result = config;
  result.name.clear();
  result.backend.clear();
  result.recipe.clear();
  result.init_from.clear();
  for (StageConfig& stage : result.stages) {
    stage.recipe.clear();
    forget_paths(stage.data);
    if (!stage.eval) continue;
    forget_paths(stage.eval->data);
    stage.eval->multiple_choice.clear();
    if (stage.eval->rollout) stage.eval->rollout->recipe.clear();
  }
  return result;
}

}  // namespace

RunConfig parse_run_config(const std::string& text, const std::string& origin,
                           const std::vector<Assignment>& assignments) {
  static constexpr std::array<Named<std::string_view>, 3> kBackends = {
      {{"cpu", "cpu"}, {"truth", "truth"}, {"cuda", "cuda"}}};
  const toml::table root = build_run_document(text, origin, assignments);
  TomlReader document(root, "", origin);
  RunConfig config;
  config.name = document.text("name", config.name);
  if (!is_run_name(config.name)) {
    document.refuse("name", "'" + config.name + "'", std::string(kRunNameRule));
  }
  config.recipe = document.text("recipe", config.recipe);
  config.backend = document.choice<std::string_view>("backend", kBackends, "cpu");
  config.seed = static_cast<std::uint64_t>(document.integer("seed", 1, 0));
  config.init_from = document.text("init_from", "");
  config.model = read_model_table(document);
  config.optimizer = read_optimizer(document);
  config.logging = read_logging(document);
  config.attention = read_attention(document);
  read_stages(document, config);
  document.finish();
  if (config.recipe.empty()) document.refuse("recipe", "empty", "a recipe's name or file");
  check_recipe_name(document, config.recipe);
  config.text = to_toml(config);
  config.hash = hex16(xxh3(to_toml(without_references(config))));
  return config;
}

RunConfig load_run_config(const std::filesystem::path& file,
                          const std::vector<Assignment>& assignments) {
  return parse_run_config(read_file(file), file.string(), assignments);
}

ModelConfig load_model(const std::string& name_or_path) {
  if (!is_hugging_face_folder(name_or_path)) find_experiment("models", name_or_path, "");
  const std::string origin = "model " + name_or_path;
  const toml::table root = build_run_document("model = " + toml_quoted(name_or_path), origin, {});
  TomlReader document(root, "", origin);
  return read_model_table(document);
}

RunConfig load_preset(const std::string& name, const std::vector<Assignment>& assignments) {
  return load_run_config(find_experiment("presets", name, ""), assignments);
}

}  // namespace fp8lab
