#include "src/config/run_tables.hpp"

#include <algorithm>
#include <set>

#include "src/config/config_names.hpp"
#include "src/config/experiments.hpp"
#include "src/config/run_name.hpp"
#include "src/config/size_limits.hpp"
#include "src/config/spec_words.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

constexpr std::int64_t kMostChunks = 4096;  // that random keys tell apart

bool is_stage_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyz"
                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string_view::npos;
}

bool is_not_empty(std::string_view name) { return !name.empty(); }

bool is_madam(const UpdateSpec& spec) { return spec.rule == UpdateRule::madam; }
bool is_adamw(const UpdateSpec& spec) { return spec.rule == UpdateRule::adamw; }

/// Keys that a file may say of every rule, so that a study can exchange the rule alone.
Fields<UpdateSpec> shared_update_fields() {
  using S = UpdateSpec;
  const auto has_beta2 = [](const S& spec) { return spec.rule != UpdateRule::sgd; };
  const auto decays = [](const S& spec) { return !is_madam(spec); };
  return {
      number("beta1", &S::beta1, 0.0, 0.99999, "decay of the first moment, a step")
          .when([](const S& spec) { return spec.has_first_moment(); }, "a kind other than madam")
          .ignored_otherwise(),
      number("beta2", &S::beta2, 0.0, 0.99999,
             "decay of the second moment, a step; of lion, whose first moment decides by beta1, of "
             "that moment")
          .when(has_beta2, "a kind other than sgd")
          .ignored_otherwise(),
      number("epsilon", &S::epsilon, 1e-30, 1.0, "added to the root of the second moment")
          .when(is_adamw, "kind = \"adamw\"")
          .ignored_otherwise(),
      number("weight_decay", &S::weight_decay, 0.0, 10.0,
             "share of a matrix taken away a step, times the learning rate")
          .when(decays, "a kind other than madam")
          .ignored_otherwise(),
      number("clip_norm", &S::clip_norm, 0.0, 1e30,
             "largest norm of all gradients together; 0: not clipped"),
  };
}

Fields<UpdateSpec> rule_fields() {
  using S = UpdateSpec;
  const auto is_after = [](const S& spec) { return spec.rule != UpdateRule::lion; };
  return {
      choice("kind", &S::rule, kUpdateRuleNames, "how weights follow from gradients"),
      choice("update_moments", &S::moments, kMomentUseNames,
             "the moments that change the weights: rounded to their storage, or before that")
          .when(is_after, "a kind other than lion, which takes the moment of the step before"),
      number("gradient_bound", &S::gradient_bound, 0.5, 1e6,
             "largest gradient over its root mean square")
          .when(is_madam, "kind = \"madam\""),
      number("weight_bound", &S::weight_bound, 0.0, 1e6,
             "largest weight in root mean squares of its tensor, as the stage began")
          .when(is_madam, "kind = \"madam\""),
  };
}

Field<OptimizerConfig> state_field(std::string word, QuantSpec OptimizerConfig::*member,
                                   std::string help) {
  const auto read = [](std::string_view words) -> std::optional<QuantSpec> {
    try {
      const QuantSpec spec = parse_state_spec(std::string(words));
      if (!refuse_state(spec)) return spec;
    } catch (const Error&) {
      // What is accepted says enough.
    }
    return std::nullopt;
  };
  Field<OptimizerConfig> field =
      spelled(std::move(word), member, read, state_label,
              "bf16, fp32, or the words of a signed format of at most 16 bits, with a current "
              "scale of the tensor or of 1xC consecutive elements, a static one, or none: "
              "e4m3fn/1x128/expand, e5m2/tensor/pow2, fp16/tensor, e5m6/1x128, lns16g2048/tensor",
              std::move(help));
  field.names = {"bf16", "fp32"};
  return field;
}

Field<OptimizerGroup> group_decay_field() {
  Field<OptimizerGroup> field = number("weight_decay", &OptimizerGroup::weight_decay, 0.0, 10.0,
                                       "of matrices and vectors of the group alike");
  return std::move(field).by_default("as without the group");
}

const Table<OptimizerGroup>& optimizer_group_table() {
  using S = OptimizerGroup;
  static const Table<S> table{{
      text("match", &S::match, "a pattern of parameters' names",
           "such as \"layers.*.mlp\"; it matches "
           "the names below it as well, and the first group that does counts",
           is_not_empty)
          .required(),
      number("learning_rate", &S::learning_rate, 0.0, 1e6, "factor of the stage's learning rate"),
      group_decay_field(),
  }};
  return table;
}

const Table<OptimizerConfig>& optimizer_table() {
  using S = OptimizerConfig;
  static const Table<S> table{optimizer_fields(),
                              {shared(TableList("group", &S::groups, optimizer_group_table,
                                                "rates of the parameters of a name"))}};
  return table;
}

const Table<LoggingConfig>& logging_table() {
  using S = LoggingConfig;
  static const Table<S> table{{
      integer("every_steps", &S::every_steps, 1, kLargeCount, "steps between rows of /metrics"),
      integer("statistics_every_steps", &S::statistics_every_steps, 0, kLargeCount,
              "steps between rows of /tensors; 0: none")
          .counting_steps(),
      integer("update_errors_every_steps", &S::update_errors_every_steps, 0, kLargeCount,
              "steps between rows of /scores on lost updates and errors of moments; 0: none")
          .counting_steps(),
      integer("checkpoint_every_steps", &S::checkpoint_every_steps, 0, kLargeCount,
              "steps between checkpoints; 0: only at the end of a stage")
          .counting_steps(),
      boolean("hash_every_step", &S::hash_every_step, "the hash of all weights after every step"),
      choice("nonfinite", &S::nonfinite, kNonfinitePolicyNames,
             "what a loss or gradient norm that is not finite does"),
      number("print_every_seconds", &S::print_every_seconds, 0.0, 86400.0,
             "seconds between lines of progress outside a terminal; 0: a line a step")
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
      boolean(
          "enabled", &S::enabled,
          "detectors of training that is about to break, and the operand behind a step that did"),
      threshold("outlier_channels", &S::outlier_channels, kNoLargestNumber,
                "growth of the largest channel of an activation over the median one, deviations"),
      threshold("swiglu_alignment", &S::swiglu_alignment, 1.0,
                "cosine between the gate and up weights of a SwiGLU channel"),
      threshold("kurtosis", &S::kurtosis, kNoLargestNumber,
                "growth of the kurtosis of an activation, deviations"),
      threshold("scale_drift", &S::scale_drift, kNoLargestNumber,
                "change of an operand's largest scale in either direction, deviations"),
      threshold("amax_lag", &S::amax_lag, kNoLargestNumber,
                "amax over the range of a scale that is not taken from the tensor itself"),
      threshold("gradient_norm", &S::gradient_norm, kNoLargestNumber,
                "growth of the gradient norm, deviations"),
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
             "copies beside their layer (0 0 1 1), or all layers once more (0 1 0 1)"),
      boolean("silent_copies", &S::silent_copies,
              "what copies write into the residual stream starts at zero: the same function"),
  }};
  return table;
}

const Table<AttentionConfig>& attention_table() {
  using S = AttentionConfig;
  static const Table<S> table{{
      integer("kv_tile", &S::kv_tile, 1, 65536, "keys of one step of the online softmax"),
      integer("q_tile", &S::q_tile, 1, 65536, "queries whose gradients are summed together"),
  }};
  return table;
}

const Table<MemoryConfig>& memory_table() {
  using S = MemoryConfig;
  static const Table<S> table{{
      choice("recompute", &S::recompute, kRecomputeNames,
             "activations that the backward pass computes again instead of keeping them: none, of "
             "each layer those in front of the feed-forward activation, the feed-forward half, or "
             "all but its input; the same bits")
          .not_hashed(),
      choice("weight_codes", &S::weight_codes, kWeightCodesNames,
             "quantized weights are kept for the step, or made again for each product; the same "
             "bits")
          .not_hashed(),
      integer("loss_chunk", &S::loss_chunk, 0, kLargeCount,
              "tokens whose logits exist at once, through LM head, loss and their gradients, a "
              "divisor of those of a micro-batch; 0: all. The head's weight gradient is the sum "
              "over chunks"),
  }};
  return table;
}

const Table<LearningRateSchedule>& learning_rate_table() {
  using S = LearningRateSchedule;
  const auto is_wsd = [](const S& rate) { return rate.kind == ScheduleKind::wsd; };
  static const Table<S> table{{
      choice("kind", &S::kind, kScheduleKindNames,
             "what follows the warm-up: a constant rate and a cosine at the end (wsd), or one "
             "curve"),
      number("peak", &S::peak, 0.0, 10.0, "rate after the warm-up"),
      number("final", &S::final, 0.0, 10.0, "rate at the last step"),
      integer("warmup_steps", &S::warmup_steps, 0, kLargeCount, "steps of linear growth")
          .or_share()
          .by_default("10, or all steps of a shorter stage"),
      integer("decay_steps", &S::decay_steps, 0, kLargeCount, "steps of the closing cosine")
          .or_share()
          .when(is_wsd, "kind = \"wsd\""),
  }};
  return table;
}

Field<PassAtKConfig> k_field() {
  Field<PassAtKConfig> field =
      row("k", &PassAtKConfig::k, "a list of integers from 1 to samples",
          "for which k the chance that one of k samples is right is estimated");
  field.get = [](const PassAtKConfig& pass) { return FieldList(pass.k.begin(), pass.k.end()); };
  field.set = [](PassAtKConfig& pass, const FieldValue& value) {
    const FieldList* const list = std::get_if<FieldList>(&value);
    if (list == nullptr || list->empty()) return false;
    std::vector<std::int64_t> k;
    for (const FieldValue& element : *list) {
      const std::optional<std::int64_t> given = integer_in(element, 1, kNoLargestInteger);
      if (!given) return false;
      k.push_back(*given);
    }
    pass.k = std::move(k);
    return true;
  };
  return field;
}

void check_pass_at_k(const TomlReader& reader, const PassAtKConfig& pass) {
  const std::int64_t largest = *std::max_element(pass.k.begin(), pass.k.end());
  if (largest <= pass.samples) return;
  reader.refuse("k", fmt::format("more than there are samples, {}", largest),
                fmt::format("a list of integers from 1 to samples = {}", pass.samples));
}

const Table<PassAtKConfig>& pass_at_k_table() {
  using S = PassAtKConfig;
  static const Table<S> table = [] {
    Table<S> rows{{
        integer("problems", &S::problems, 1, 1 << 20, "problems that are asked"),
        integer("samples", &S::samples, 1, 65536, "answers of each"),
        k_field(),
    }};
    lift(sampling_fields(), &S::sampling, rows.fields);
    rows.check = check_pass_at_k;
    return rows;
  }();
  return table;
}

const Table<RolloutConfig>& rollout_table() {
  using S = RolloutConfig;
  static const Table<S> table = [] {
    Table<S> rows{{
        text("recipe", &S::recipe, "a recipe's name or file, or \"\"",
             "numerics that generate; \"\": those of training")
            .not_hashed(),
        integer("prompts", &S::prompts, 1, 1 << 20, "prompts that are completed"),
        number("clip", &S::clip, 0x1p-20, kNoLargestNumber,
               "ratios of probabilities above it count as clipped"),
        integer("bucket", &S::bucket, 1, kLargeCount, "positions whose gaps are averaged together"),
    }};
    lift(sampling_fields(), &S::sampling, rows.fields);
    rows.check = [](const TomlReader& reader, const S& rollout) {
      check_recipe_name(reader, rollout.recipe);
    };
    return rows;
  }();
  return table;
}

void check_eval(const TomlReader& reader, const EvalConfig& eval) {
  if (eval.data.form == DataForm::prompt_response) return;
  for (const auto& [key, asks] : {std::pair{"exact_match", eval.exact_match > 0},
                                  std::pair{"pass_at_k", eval.pass_at_k.has_value()},
                                  std::pair{"rollout", eval.rollout.has_value()}}) {
    if (!asks) continue;
    reader.fail(key, "asks prompts; accepted: data.form = \"prompt_response\", or none");
  }
}

bool is_generated(const SourceConfig& source) { return source.kind == DataKind::arithmetic; }

/// The generator can hold problems out; a file cannot tell which of its documents to keep back.
EvalConfig usual_eval(const StageConfig& stage) {
  EvalConfig eval;
  eval.data = stage.data;
  for (SourceConfig& source : eval.data.sources) {
    source.held_out = is_generated(source);
    source.range_begin = 0.0;
    source.range_end = 1.0;
  }
  return eval;
}

LearningRateSchedule usual_learning_rate(const StageConfig& stage) {
  LearningRateSchedule rate;
  rate.warmup_steps = std::min(rate.warmup_steps, stage.steps);
  return rate;
}

DataConfig usual_data(const StageConfig& stage) {
  DataConfig data;
  if (stage.kind == StageKind::sft) data.form = DataForm::prompt_response;
  return data;
}

const Table<RecipeSwitch>& recipe_switch_table() {
  using S = RecipeSwitch;
  static const Table<S> table{
      {
          integer("step", &S::step, 1, kLargeCount, "steps of the stage that are taken before")
              .or_share()
              .required(),
          text("recipe", &S::recipe, "a recipe's name or file", "numerics of the steps from there",
               is_not_empty)
              .required()
              .not_hashed(),
      },
      {},
      [](const TomlReader& reader, const S& change) { check_recipe_name(reader, change.recipe); }};
  return table;
}

void check_recipe_at(const TomlReader& reader, const StageConfig& stage) {
  TomlReader copy = reader;
  std::size_t index = 0;
  std::int64_t last = 0;
  for (const TomlReader& table : copy.tables("recipe_at")) {
    const std::int64_t step = stage.recipe_at[index++].step;
    if (step <= last || step >= stage.steps) {
      table.refuse("step", fmt::format("{} steps", step),
                   integers(last + 1, stage.steps - 1) + ", after those before it");
    }
    last = step;
  }
}

const Table<FallbackCriteria>& fallback_criteria_table() {
  using S = FallbackCriteria;
  const auto has_mean = [](const S& when) { return when.loss_spike > 0 || when.gradient_norm > 0; };
  static const Table<S> table{
      {
          number("loss_spike", &S::loss_spike, 0.0, kNoLargestNumber,
                 "the loss is above so many times its running mean; 0: does not count"),
          number("gradient_norm", &S::gradient_norm, 0.0, kNoLargestNumber,
                 "the norm of all gradients is above so many times its running mean; 0: does not "
                 "count"),
          number("saturation", &S::saturation, 0.0, 1.0,
                 "at a logged step, more than this share of an operand's elements lies beyond the "
                 "range of its tile; 0: does not count"),
          boolean("nonfinite", &S::nonfinite,
                  "loss or gradient norm is not finite; the step does not update the weights"),
          integer("window", &S::window, 1, kLargeCount,
                  "steps of the running means, and steps of the stage before they count")
              .when(has_mean, "loss_spike or gradient_norm"),
      },
  };
  return table;
}

const Table<FallbackConfig>& fallback_table() {
  using S = FallbackConfig;
  static const Table<S> table{
      {
          text("recipe", &S::recipe, "a recipe's name or file",
               "numerics of the steps after the one at which a criterion holds", is_not_empty)
              .required()
              .not_hashed(),
      },
      {shared(MemberTable("when", &S::when, fallback_criteria_table,
                          "the criteria; one of them is enough")
                  .always())},
      [](const TomlReader& reader, const S& fallback) {
        check_recipe_name(reader, fallback.recipe);
        const FallbackCriteria& when = fallback.when;
        if (when.loss_spike > 0 || when.gradient_norm > 0 || when.saturation > 0 || when.nonfinite)
          return;
        reader.fail("when",
                    "nothing makes the stage fall back; accepted: at least one of "
                    "loss_spike, gradient_norm, saturation, nonfinite");
      }};
  return table;
}

void check_stage(const TomlReader& reader, const StageConfig& stage) {
  const LearningRateSchedule& rate = stage.learning_rate;
  if (rate.warmup_steps + rate.decay_steps > stage.steps) {
    inner_reader(reader, "learning_rate")
        ->fail("warmup_steps",
               fmt::format("warmup_steps = {} and decay_steps = {} do not fit into steps = {}",
                           rate.warmup_steps, rate.decay_steps, stage.steps));
  }
  const std::vector<SourceConfig>& sources = stage.data.sources;
  const std::optional<TomlReader> eval = inner_reader(reader, "eval");
  if (eval && !eval->has("data") && !std::all_of(sources.begin(), sources.end(), is_generated)) {
    eval->fail("data", "missing; a stage that reads files names its held-out documents");
  }
  check_recipe_name(reader, stage.recipe);
  check_recipe_at(reader, stage);
  if (stage.batch_sequences % stage.micro_batch_sequences != 0) {
    reader.fail("micro_batch_sequences",
                fmt::format("{} does not divide batch_sequences = {}", stage.micro_batch_sequences,
                            stage.batch_sequences));
  }
}

/// The key of outlier channels before there were other stresses. Runs that had none stored that,
/// and are still read.
class FormerOutliers : public InnerTable<StageConfig> {
 public:
  FormerOutliers() : InnerTable("planted_outliers") {}

  void read(TomlReader& outer, StageConfig&) const override {
    if (!outer.has(word)) return;
    const bool has_none = outer.raw()[word]["channels"].value_or(std::int64_t{-1}) == 0;
    if (!has_none) {
      outer.fail(word,
                 "is a stress now; accepted: [[stages.stress]] with kind = "
                 "\"outlier_channels\"");
    }
    outer.node(word);
  }
  std::string tables(const StageConfig&, const StageConfig&, const std::string&,
                     Keys) const override {
    return {};
  }
  void list(const std::string&, std::vector<KeyHelp>&) const override {}
};

Fields<StageConfig> stage_fields() {
  using S = StageConfig;
  return {
      text("name", &S::name, "letters, digits, '_' and '-'",
           "how the stage is called, also by --set stages.NAME.KEY", is_stage_name)
          .required(),
      choice("kind", &S::kind, kStageKindNames,
             "sft trains on the answers to prompts, the others on running text"),
      integer("steps", &S::steps, 1, kLargeCount, "steps of the optimizer").counting_steps(),
      integer("batch_sequences", &S::batch_sequences, 1, kLargeCount,
              "sequences of one step of the optimizer"),
      integer("micro_batch_sequences", &S::micro_batch_sequences, 1, kLargeCount,
              "sequences of one forward and backward pass; divides batch_sequences")
          .otherwise([](const S& stage) { return stage.batch_sequences; }, "batch_sequences"),
      integer("sequence_length", &S::sequence_length, 2, kLargeCount,
              "tokens of a sequence; at most model.max_position_embeddings"),
      text("recipe", &S::recipe, "a recipe's name or file, or \"\"",
           "numerics of the stage; \"\": those of the run")
          .not_hashed(),
      boolean("reset_optimizer", &S::reset_optimizer, "the moments start from zero"),
      boolean("reset_amax_history", &S::reset_amax_history,
              "delayed scaling starts without a history"),
      boolean(
          "restart_data", &S::restart_data,
          "the data start from their beginning, though an earlier stage of this kind read them"),
  };
}

const Table<StageConfig>& stage_table() {
  using S = StageConfig;
  static const Table<S> table{
      stage_fields(),
      {shared(MemberTable("learning_rate", &S::learning_rate, learning_rate_table,
                          "over the steps of the stage")
                  .starts(usual_learning_rate)),
       shared(TableList("stress", &S::stress, stress_table,
                        "what tries the numerics of the stage, the same under every recipe")),
       shared(FormerOutliers()),
       shared(MemberTable("data", &S::data, data_table, "what the stage trains on")
                  .starts(usual_data)),
       shared(OptionalTable<S, EvalConfig>("eval", &S::eval, eval_table,
                                           "evaluations on held-out data; none without the table",
                                           usual_eval)),
       shared(TableList("recipe_at", &S::recipe_at, recipe_switch_table,
                        "other recipes within the stage, one after the other")),
       shared(OptionalTable<S, FallbackConfig>(
           "fallback", &S::fallback, fallback_table,
           "another recipe for the rest of the stage, from the step on after which it is needed"))},
      check_stage,
      &S::steps};
  return table;
}

void check_in_model(const TomlReader& reader, const StageConfig& stage, const ModelConfig& model) {
  check_stresses(reader, stage, model);
  if (stage.sequence_length > model.max_position_embeddings) {
    reader.fail("sequence_length",
                fmt::format("{} exceeds model.max_position_embeddings = {}", stage.sequence_length,
                            model.max_position_embeddings));
  }
  check_stage_size(reader, stage, model);
}

/// Rollouts of another recipe have other sources of error.
void check_exact(const TomlReader& reader, const RunConfig& config) {
  if (config.exact.empty()) return;
  for (const StageConfig& stage : config.stages) {
    if (!stage.eval || !stage.eval->rollout || stage.eval->rollout->recipe.empty()) continue;
    reader.fail("exact", fmt::format("beside stages.{}.eval.rollout.recipe; accepted: one of them",
                                     stage.name));
  }
}

/// A chunk of the loss is to the head what a micro-batch is to the model.
void check_loss_chunk(const TomlReader& reader, const RunConfig& config) {
  const std::int64_t chunk = config.memory.loss_chunk;
  if (chunk == 0) return;
  const auto fail = [&](const std::string& message) {
    inner_reader(reader, "memory")->fail("loss_chunk", message);
  };
  for (const StageConfig& stage : config.stages) {
    const std::int64_t tokens = stage.micro_batch_sequences * stage.sequence_length;
    if (chunk >= tokens) continue;
    if (tokens % chunk != 0) {
      fail(fmt::format("{} does not divide the {} tokens of a micro-batch of stage {}", chunk,
                       tokens, stage.name));
    }
    const std::int64_t chunks =
        stage.batch_sequences / stage.micro_batch_sequences * (tokens / chunk);
    if (chunks > kMostChunks) {
      fail(fmt::format("{} makes {} chunks of a step of stage {}; accepted: at most {}", chunk,
                       chunks, stage.name, kMostChunks));
    }
    if (config.optimizer.gradients == plain_state(DType::bf16) &&
        !config.model.tie_word_embeddings) {
      fail(
          fmt::format("{} makes {} chunks a step, whose gradients of the head are added: "
                      "optimizer.gradients = \"fp32\" goes with it",
                      chunk, chunks));
    }
  }
}

/// Whether there is something to grow shows at the start: a study's arms start from a shared run.
void check_growth(const TomlReader& reader, const RunConfig& config) {
  if (!config.growth) return;
  const std::int64_t layers = config.model.num_hidden_layers, from = config.growth->from_layers;
  if (layers > from && layers % from == 0) return;
  reader.fail("growth",
              fmt::format("{} layers cannot grow to {}; accepted: model.num_hidden_layers "
                          "= {} or another multiple",
                          from, layers, 2 * from));
}

void check_run(const TomlReader& reader, const RunConfig& config) {
  if (config.stages.empty()) reader.refuse("stages", "missing", "at least one [[stages]] table");
  TomlReader document = reader;
  std::set<std::string> names;
  std::size_t index = 0;
  for (const TomlReader& table : document.tables("stages")) {
    const StageConfig& stage = config.stages[index++];
    check_in_model(table, stage, config.model);
    if (config.optimizer.gradients == plain_state(DType::bf16) &&
        stage.micro_batch_sequences != stage.batch_sequences) {
      table.fail("micro_batch_sequences",
                 fmt::format("{} makes {} micro-batches a step, whose gradients are added: "
                             "optimizer.gradients = \"fp32\" goes with it",
                             stage.micro_batch_sequences,
                             stage.batch_sequences / stage.micro_batch_sequences));
    }
    if (stage.fallback && stage.fallback->when.saturation > 0 &&
        config.logging.statistics_every_steps == 0) {
      table.fail("fallback",
                 "saturation is that of logged steps; accepted: "
                 "logging.statistics_every_steps above 0");
    }
    if (!names.insert(stage.name).second) {
      table.fail("name", fmt::format("two stages are called '{}'", stage.name));
    }
  }
  check_steps(reader, config.stages);
  check_recipe_name(reader, config.recipe);
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
      "sources of error that exact arithmetic replaces, those of fp8lab attribute; CPU only");
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
           "what computes: the bit-exact emulator, double precision without quantization, or the "
           "GPU",
           is_backend);
  field.names = {kBackendNames.begin(), kBackendNames.end()};
  return field;
}

}  // namespace

void check_recipe_name(const TomlReader& reader, const std::string& recipe) {
  if (!recipe.empty()) load_recipe(find_experiment("recipes", recipe, reader.where("recipe")));
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

const Fields<SamplingConfig>& sampling_fields() {
  using S = SamplingConfig;
  static const Fields<S> rows = {
      number("temperature", &S::temperature, 0.0, 1000.0,
             "logits are divided by it; 0: the token with the largest"),
      integer("top_k", &S::top_k, 0, kLargeCount, "tokens to draw from; 0: all"),
      number("top_p", &S::top_p, 0x1p-20, 1.0, "probability of the tokens to draw from"),
      integer("min_new_tokens", &S::min_new_tokens, 0, 65536,
              "tokens before which the end token is never drawn"),
      integer("seed", &S::seed, 0, kNoLargestInteger, "of the draws"),
  };
  return rows;
}

const Fields<OptimizerConfig>& optimizer_fields() {
  using S = OptimizerConfig;
  static const Fields<S> rows = [] {
    Fields<S> all;
    lift(shared_update_fields(), &S::update, all);
    all.push_back(state_field("weights", &S::weights,
                              "storage of the weights that are updated; bf16: no FP32 master"));
    all.push_back(state_field("gradients", &S::gradients,
                              "storage of the gradients of a step; bf16: of linear layers' "
                              "weights, in steps of one micro-batch"));
    all.push_back(state_field("first_moment", &S::first_moment, "storage of the first moment")
                      .when([](const S& optimizer) { return optimizer.update.has_first_moment(); },
                            "a kind other than madam"));
    all.push_back(state_field("second_moment", &S::second_moment, "storage of the second moment")
                      .when([](const S& optimizer) { return optimizer.update.has_second_moment(); },
                            "kind = \"adamw\" or \"madam\""));
    lift(rule_fields(), &S::update, all);
    return all;
  }();
  return rows;
}

const Table<EvalConfig>& eval_table() {
  using S = EvalConfig;
  static const Table<S> table{
      {
          integer("every_steps", &S::every_steps, 1, kLargeCount,
                  "steps between held-out losses, also taken at the end of the stage")
              .or_share(),
          integer("sequences", &S::sequences, 1, kLargeCount, "sequences of the held-out loss"),
          number("sharpness", &S::sharpness, 0.0, 1.0,
                 "how far each logit moves for the sharpness of the held-out loss, relative, such "
                 "as 5e-4; 0: not measured"),
          integer("exact_match", &S::exact_match, 0, kLargeCount,
                  "problems answered greedily at the end of the stage; 0: none"),
          integer("max_new_tokens", &S::max_new_tokens, 1, 65536, "tokens of an answer at most"),
          text("multiple_choice", &S::multiple_choice, "a file, or \"\"",
               "questions asked at the end of the stage; \"\": none")
              .not_hashed(),
      },
      {shared(OptionalTable<S, PassAtKConfig>("pass_at_k", &S::pass_at_k, pass_at_k_table,
                                              "sampled answers at the end of the stage")),
       shared(OptionalTable<S, RolloutConfig>(
           "rollout", &S::rollout, rollout_table,
           "completions generated under one recipe and scored under that of training")),
       shared(MemberTable("data", &S::data, data_table,
                          "held-out documents; keys that are absent are those of the stage's data")
                  .always())},
      check_eval};
  return table;
}

const Table<RunConfig>& run_table() {
  using S = RunConfig;
  static const Table<S> table{
      {
          text("name", &S::name, std::string(kRunNameRule), "also the run's folder in runs/",
               is_run_name)
              .not_hashed(),
          text("recipe", &S::recipe, "a recipe's name or file", "numerics of every stage",
               is_not_empty)
              .not_hashed(),
          backend_field().not_hashed(),
          integer("seed", &S::seed, 0, kNoLargestInteger,
                  "of initial weights, order of the data and stochastic rounding"),
          text("init_from", &S::init_from, "a path, or \"\"",
               "checkpoint, Hugging Face folder or safetensors file whose weights start the run; "
               "\"\": random")
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
       shared(MemberTable("logging", &S::logging, logging_table, "what the run file holds")),
       shared(MemberTable("warnings", &S::warnings, warnings_table,
                          "online detectors and the level from which on each of them warns")),
       shared(MemberTable("attention", &S::attention, attention_table,
                          "tiles that fix the order of sums")),
       shared(MemberTable("memory", &S::memory, memory_table,
                          "what a step keeps, and what it computes again instead")),
       shared(
           TableList("stages", &S::stages, stage_table,
                     "one after the other, at least one; base = \"NAME\" starts from a stage out "
                     "of experiments/stages"))},
      check_run};
  return table;
}

}  // namespace fp8lab
