// The run file's top level, its small tables, and functions that several tables need.
#include "src/config/tables/run_tables.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <set>

#include "src/config/config_names.hpp"
#include "src/config/recipe/model_recipe.hpp"
#include "src/config/recipe/recipe_source.hpp"
#include "src/config/run_name.hpp"
#include "src/config/tables/size_limits.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

const Table<LoggingConfig>& logging_table() {
  using S = LoggingConfig;
  static const Table<S> table{{
      integer("every_steps", &S::every_steps, 1, kLargeCount, "steps between rows of /metrics"),
      integer("statistics_every_steps", &S::statistics_every_steps, 0, kLargeCount,
              "steps between rows of /tensors; 0: none")
          .counting_steps(),
      integer("update_errors_every_steps", &S::update_errors_every_steps, 0, kLargeCount,
              "steps between rows of /scores about lost updates and errors of moments; 0: none")
          .counting_steps(),
      integer("checkpoint_every_steps", &S::checkpoint_every_steps, 0, kLargeCount,
              "steps between checkpoints; 0: only at the end of a stage")
          .counting_steps(),
      boolean("hash_every_step", &S::hash_every_step,
              "record the hash of all weights after every step"),
      choice("nonfinite", &S::nonfinite, kNonfinitePolicyNames,
             "what happens after a loss or gradient norm that is not finite"),
      number(
          "print_every_seconds", &S::print_every_seconds, 0.0, 86400.0,
          "seconds between progress lines if the output is not a terminal; 0: a line for each step")
          .not_hashed(),
  }};
  return table;
}

const Table<WarningsConfig>& warnings_table() {
  using S = WarningsConfig;
  const auto threshold = [](std::string word, double S::*member, double largest, std::string help) {
    const auto warns = [](const S& warnings) { return warnings.enabled; };
    return number(std::move(word), member, 0x1p-20, largest, std::move(help))
        .when(warns, "enabled = true");
  };
  static const Table<S> table{{
      boolean("enabled", &S::enabled,
              "warn before training breaks, and name the operand behind a step that broke"),
      threshold("outlier_channels", &S::outlier_channels, kNoLargestNumber,
                "growth of the ratio of an activation's largest channel to its median one, in "
                "standard deviations"),
      threshold("swiglu_alignment", &S::swiglu_alignment, 1.0,
                "share of the way to alignment that the gate and up weights of a SwiGLU channel "
                "have moved since the start of the run; channels that start with a cosine of this "
                "or more are left out"),
      threshold("kurtosis", &S::kurtosis, kNoLargestNumber,
                "growth of the kurtosis of an activation, in standard deviations"),
      threshold("scale_drift", &S::scale_drift, kNoLargestNumber,
                "change of an operand's largest scale in either direction, in standard deviations"),
      threshold("amax_lag", &S::amax_lag, kNoLargestNumber,
                "amax as a multiple of the range of a delayed or static scale"),
      threshold("gradient_norm", &S::gradient_norm, kNoLargestNumber,
                "growth of the gradient norm, in standard deviations"),
  }};
  return table;
}

const Table<GrowthConfig>& growth_table() {
  using S = GrowthConfig;
  static const Table<S> table{{
      integer("from_layers", &S::from_layers, 1, kLargeCount,
              "num_hidden_layers of init_from; those of the run's model are a multiple")
          .required(),
      choice("order", &S::order, kGrowthOrderNames,
             "order of the layers and their copies: interpose: 0 0 1 1, stack: 0 1 0 1"),
      boolean(
          "silent_copies", &S::silent_copies,
          "copies start with zero output weights, so that the model computes the same function"),
  }};
  return table;
}

/// Rows of a tile, a whole number of the tensor core's groups.
Field<AttentionConfig> tile(const char* word, std::int64_t AttentionConfig::*member,
                            const char* help) {
  constexpr std::int64_t kGroup = 16;
  Field<AttentionConfig> field = integer(word, member, kGroup, 65536, help);
  field.accepted = fmt::format("a multiple of {} up to 65536", kGroup);
  field.set = [member, plain = field.set](AttentionConfig& config, const FieldValue& value) {
    AttentionConfig trial = config;
    const bool fits = plain(trial, value) && trial.*member % kGroup == 0;
    if (fits) config = trial;
    return fits;
  };
  return field;
}

const Table<AttentionConfig>& attention_table() {
  using S = AttentionConfig;
  static const Table<S> table{{
      tile("kv_tile", &S::kv_tile, "keys in one step of the online softmax"),
      tile("q_tile", &S::q_tile, "queries in one step of the backward pass"),
  }};
  return table;
}

const Table<MemoryConfig>& memory_table() {
  using S = MemoryConfig;
  static const Table<S> table{{
      choice("recompute", &S::recompute, kRecomputeNames,
             "activations that the backward pass recomputes: none, those in front of the "
             "feed-forward activation, those of the feed-forward block, or all but the input of "
             "each layer; the bits are the same")
          .not_hashed(),
      choice("weight_codes", &S::weight_codes, kWeightCodesNames,
             "whether quantized weights are kept for the step or quantized again for each GEMM; "
             "the bits are the same")
          .not_hashed(),
      integer("loss_chunk", &S::loss_chunk, 0, kLargeCount,
              "tokens of one chunk of LM head and loss, a divisor of the tokens of a micro-batch; "
              "0: all at once. The head's weight gradient is the sum over chunks"),
  }};
  return table;
}

const Table<ParallelConfig>& parallel_table() {
  using S = ParallelConfig;
  static const Table<S> table{{
      integer("shards", &S::shards, 1, kMostChunks,
              "parts of a step's batch whose gradients are computed separately and then added as a "
              "binary tree; a power of two that divides batch_sequences. A pass holds at most one "
              "shard: a larger micro_batch_sequences means a shard. The bits do not depend on how "
              "many processes would share the shards; this version runs one"),
  }};
  return table;
}

/// Throws unless the batches of all stages can be divided into the shards.
void check_shards(const TomlReader& reader, const RunConfig& config) {
  const std::int64_t shards = config.parallel.shards;
  const auto fail = [&](ErrorFields fields) {
    fields.found = fmt::to_string(shards);
    inner_reader(reader, "parallel")->fail("shards", std::move(fields));
  };
  if (!std::has_single_bit(static_cast<std::uint64_t>(shards))) {
    fail({.accepted = "a power of two"});
  }
  for (const StageConfig& stage : config.stages) {
    if (stage.batch_sequences % shards != 0) {
      fail({.reason = fmt::format("does not divide batch_sequences = {} of stage {}",
                                  stage.batch_sequences, stage.name)});
    }
    const std::int64_t of_shard = stage.batch_sequences / shards;
    if (of_shard % pass_sequences(config, stage) != 0) {
      fail({.reason = fmt::format("makes shards of {} sequences in stage {}", of_shard, stage.name),
            .accepted = fmt::format(
                "shards of a multiple of micro_batch_sequences = {}, or of fewer sequences",
                stage.micro_batch_sequences)});
    }
  }
}

void check_in_model(const TomlReader& reader, const StageConfig& stage, const ModelConfig& model) {
  check_stresses(reader, stage, model);
  if (stage.sequence_length > model.max_position_embeddings) {
    reader.fail("sequence_length",
                {.found = fmt::to_string(stage.sequence_length),
                 .reason = fmt::format("exceeds model.max_position_embeddings = {}",
                                       model.max_position_embeddings)});
  }
  check_stage_size(reader, stage, model);
}

/// Throws unless the stage is long enough for the criteria to act: a running mean counts only once
/// its window is full, and the fallback recipe applies from the step after the one that is judged.
void check_fallback_window(const TomlReader& reader, const StageConfig& stage) {
  if (!stage.fallback) return;
  const FallbackCriteria& when = stage.fallback->when;
  const bool has_mean = when.loss_spike > 0 || when.gradient_norm > 0;
  if (!has_mean || when.window + 2 <= stage.steps) return;
  reader.fail("fallback",
              {.reason = fmt::format(
                   "when.window = {} leaves loss_spike and gradient_norm no step to act in {} "
                   "steps: they count from step {} on, and the recipe changes after it",
                   when.window, stage.steps, when.window + 1),
               .accepted = stage.steps < 3 ? std::string("steps of 3 or more")
                                           : "window " + integers(1, stage.steps - 2)});
}

/// Throws if `exact` is combined with rollouts of another recipe, which has other sources of error.
void check_exact(const TomlReader& reader, const RunConfig& config) {
  if (config.exact.empty()) return;
  for (const StageConfig& stage : config.stages) {
    if (!stage.eval || !stage.eval->rollout || stage.eval->rollout->recipe.empty()) continue;
    reader.fail("exact", {.reason = fmt::format("beside stages.{}.eval.rollout.recipe", stage.name),
                          .accepted = "one of them"});
  }
}

/// Throws unless the chunks of the loss divide a micro-batch; the rules are those of micro-batches.
void check_loss_chunk(const TomlReader& reader, const RunConfig& config) {
  const std::int64_t chunk = config.memory.loss_chunk;
  if (chunk == 0) return;
  const auto fail = [&](ErrorFields fields) {
    fields.found = fmt::to_string(chunk);
    inner_reader(reader, "memory")->fail("loss_chunk", std::move(fields));
  };
  for (const StageConfig& stage : config.stages) {
    const std::int64_t sequences = pass_sequences(config, stage);
    const std::int64_t tokens = sequences * stage.sequence_length;
    if (chunk >= tokens) continue;
    if (tokens % chunk != 0) {
      fail({.reason = fmt::format("does not divide the {} tokens of a micro-batch of stage {}",
                                  tokens, stage.name)});
    }
    const std::int64_t chunks = stage.batch_sequences / sequences * (tokens / chunk);
    if (chunks > kMostChunks) {
      fail({.reason = fmt::format("makes {} chunks of a step of stage {}", chunks, stage.name),
            .accepted = fmt::format("at most {}", kMostChunks)});
    }
    if (config.optimizer.gradients == plain_state(DType::bf16) &&
        !config.model.tie_word_embeddings) {
      fail({.reason = fmt::format("makes {} chunks a step, whose gradients of the head are added: "
                                  "optimizer.gradients = \"fp32\" goes with it",
                                  chunks)});
    }
  }
}

/// Checks at the start that the model can grow; the arms of a study start from a shared run later.
void check_growth(const TomlReader& reader, const RunConfig& config) {
  if (!config.growth) return;
  const std::int64_t layers = config.model.layer_count(), from = config.growth->from_layers;
  const std::vector<LayerSpec>& specs = config.model.layers;
  if (std::count(specs.begin(), specs.end(), specs.front()) != layers) {
    reader.fail("growth", {.reason = "beside model.layer_types", .accepted = "layers of one type"});
  }
  if (layers > from && layers % from == 0) return;
  reader.fail("growth", {.found = fmt::to_string(from),
                         .reason = fmt::format("layers cannot grow to {}", layers),
                         .accepted = fmt::format("model.num_hidden_layers = {} or another multiple",
                                                 2 * from)});
}

/// Throws unless the patterns of the recipe `key` of `reader` name modules of the model. Recorded
/// recipes have been checked when their run began.
void check_names_of(const TomlReader& reader, const char* key, const std::string& recipe,
                    const ModelConfig& model) {
  if (recipe.empty() || reader.has_recipe(recipe)) return;
  load_recipe_for(model, recipe, fmt::format("{}: '{}'", reader.where(key), reader.path_of(key)));
}

void check_names_of_recipes(const TomlReader& reader, const RunConfig& config) {
  check_names_of(reader, "recipe", config.recipe, config.model);
  TomlReader document = reader;
  std::size_t index = 0;
  for (const TomlReader& table : document.tables("stages")) {
    const StageConfig& stage = config.stages[index++];
    check_names_of(table, "recipe", stage.recipe, config.model);
    for (const RecipeSwitch& change : stage.recipe_at) {
      check_names_of(table, "recipe_at", change.recipe, config.model);
    }
    if (stage.fallback) check_names_of(table, "fallback", stage.fallback->recipe, config.model);
    if (stage.eval && stage.eval->rollout) {
      check_names_of(table, "eval", stage.eval->rollout->recipe, config.model);
    }
  }
}

void check_run(const TomlReader& reader, const RunConfig& config) {
  if (config.stages.empty())
    reader.refuse("stages", {.reason = "is missing", .accepted = "at least one [[stages]] table"});
  TomlReader document = reader;
  std::set<std::string> names;
  std::size_t index = 0;
  for (const TomlReader& table : document.tables("stages")) {
    const StageConfig& stage = config.stages[index++];
    check_in_model(table, stage, config.model);
    const std::int64_t micro_batches = stage.batch_sequences / pass_sequences(config, stage);
    if (micro_batches > kMostChunks) {
      table.fail("micro_batch_sequences",
                 {.found = fmt::to_string(stage.micro_batch_sequences),
                  .reason = fmt::format("makes {} micro-batches of a step", micro_batches),
                  .accepted = fmt::format("at most {}", kMostChunks)});
    }
    if (config.optimizer.gradients == plain_state(DType::bf16) && micro_batches > 1) {
      const std::string cause =
          config.parallel.shards > 1
              ? fmt::format("with parallel.shards = {}, a step has", config.parallel.shards)
              : fmt::format("{} makes", stage.micro_batch_sequences);
      table.fail("micro_batch_sequences",
                 {.found = fmt::to_string(cause),
                  .reason = fmt::format("{} micro-batches, whose gradients are added: "
                                        "optimizer.gradients = \"fp32\" goes with it",
                                        micro_batches)});
    }
    if (stage.fallback && stage.fallback->when.saturation > 0 &&
        config.logging.statistics_every_steps == 0) {
      table.fail("fallback", {.reason = "saturation is that of logged steps",
                              .accepted = "logging.statistics_every_steps above 0"});
    }
    check_fallback_window(table, stage);
    if (!names.insert(stage.name).second) {
      table.fail("name", {.reason = fmt::format("two stages are called '{}'", stage.name)});
    }
  }
  check_steps(reader, config.stages);
  check_shards(reader, config);
  check_recipe_name(reader, config.recipe);
  check_names_of_recipes(reader, config);
  check_exact(reader, config);
  check_growth(reader, config);
  check_loss_chunk(reader, config);
}

bool keeps_one(const std::string& name) { return name.starts_with("all but "); }

Field<RunConfig> exact_field() {
  using S = RunConfig;
  Field<S> field = row(
      "exact", &S::exact,
      "a list of names such as \"underflow\", \"fprop.x\", \"dgrad\", \"layers.0.mlp.down\" and "
      "\"all\", or of one \"all but NAME\"",
      "sources of error, as fp8lab attribute names them, that are computed exactly instead; CPU "
      "only");
  field.get = [](const S& run) { return FieldList(run.exact.begin(), run.exact.end()); };
  field.set = [](S& run, const FieldValue& value) {
    std::optional<std::vector<std::string>> names = texts_of(value, false);
    if (!names || std::any_of(names->begin(), names->end(), [&](const std::string& name) {
          return name.empty() || (keeps_one(name) && names->size() > 1);
        })) {
      return false;
    }
    run.exact = *std::move(names);
    return true;
  };
  return field;
}

Field<RunConfig> backend_field() {
  const auto is_backend = [](std::string_view name) {
    return std::find(kBackendNames.begin(), kBackendNames.end(), name) != kBackendNames.end();
  };
  Field<RunConfig> field =
      text("backend", &RunConfig::backend, fmt::format("{}", fmt::join(kBackendNames, ", ")),
           "what computes: the bit-exact emulator (cpu), double precision without quantization "
           "(truth), or the GPU (cuda)",
           is_backend);
  field.names = {kBackendNames.begin(), kBackendNames.end()};
  return field;
}

}  // namespace

std::int64_t pass_sequences(const RunConfig& config, const StageConfig& stage) {
  return std::min(stage.micro_batch_sequences,
                  std::max<std::int64_t>(stage.batch_sequences / config.parallel.shards, 1));
}

void check_recipe_name(const TomlReader& reader, const std::string& recipe) {
  if (recipe.empty() || reader.has_recipe(recipe)) return;
  load_recipe(find_recipe(recipe, reader.where("recipe")));
}

std::optional<std::vector<std::string>> texts_of(const FieldValue& value, bool one) {
  const std::string* const text = std::get_if<std::string>(&value);
  if (one && text != nullptr) return std::vector<std::string>{*text};
  const FieldList* const list = std::get_if<FieldList>(&value);
  if (list == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  for (const FieldValue& element : *list) {
    const std::string* const part = std::get_if<std::string>(&element);
    if (part == nullptr) return std::nullopt;
    texts.push_back(*part);
  }
  return texts;
}

std::optional<TomlReader> inner_reader(const TomlReader& reader, std::string_view word) {
  TomlReader copy = reader;
  return copy.table(word);
}

const Table<RunConfig>& run_table() {
  using S = RunConfig;
  static const Table<S> table{
      {
          text("name", &S::name, std::string(kRunNameRule), "also the run's folder in runs/",
               is_run_name)
              .not_hashed(),
          text("recipe", &S::recipe, "a recipe's name or file", "recipe of every stage",
               is_not_empty)
              .not_hashed(),
          backend_field().not_hashed(),
          integer("seed", &S::seed, 0, kNoLargestInteger,
                  "random seed of initial weights, data order and stochastic rounding"),
          text("init_from", &S::init_from, "a path, or \"\"",
               "initial weights: a checkpoint, a Hugging Face folder or a safetensors file; \"\": "
               "random weights")
              .not_hashed(),
          exact_field(),
      },
      {shared(MemberTable("model", &S::model, model_table,
                          "shape, by the names of config.json; base = \"NAME\" starts from a model "
                          "out of experiments/models or a Hugging Face folder")),
       shared(OptionalTable<S, GrowthConfig>(
           "growth", &S::growth, growth_table,
           "depth growth: init_from is a model of fewer layers, which the run's layers copy")),
       shared(MemberTable("optimizer", &S::optimizer, optimizer_table,
                          "the rule and its storage; base = \"NAME\" starts from an optimizer "
                          "out of experiments/optimizers")),
       shared(MemberTable("logging", &S::logging, logging_table, "contents of the run file")),
       shared(MemberTable("warnings", &S::warnings, warnings_table,
                          "online detectors, and the level at which each of them warns")),
       shared(MemberTable("attention", &S::attention, attention_table,
                          "tiles of attention, which determine the order of its sums")),
       shared(MemberTable("memory", &S::memory, memory_table,
                          "what a step keeps in memory, and what it recomputes")),
       shared(MemberTable("parallel", &S::parallel, parallel_table,
                          "how the batch of a step is divided among sums and ranks")),
       shared(TableList("stages", &S::stages, stage_table,
                        "stages of the run in order, at least one; base = \"NAME\" starts from a "
                        "stage of experiments/stages"))},
      check_run};
  return table;
}

}  // namespace fp8lab
