// The [[stages]] tables of run files, except for data, evaluations and stresses, which
// have files of their own.
#include <fmt/format.h>

#include <algorithm>

#include "src/config/config_names.hpp"
#include "src/config/tables/run_tables.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

bool is_stage_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyz"
                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string_view::npos;
}

const Table<LearningRateSchedule>& learning_rate_table() {
  using S = LearningRateSchedule;
  const auto is_wsd = [](const S& rate) { return rate.kind == ScheduleKind::wsd; };
  static const Table<S> table{{
      choice("kind", &S::kind, kScheduleKindNames,
             "schedule after the warm-up: a constant rate with a decay at the end (wsd), or one "
             "curve"),
      number("peak", &S::peak, 0.0, kLargestRate, "rate after the warm-up"),
      number("final", &S::final, 0.0, kLargestRate, "rate at the last step"),
      integer("warmup_steps", &S::warmup_steps, 0, kLargeCount, "steps of linear warm-up")
          .or_share()
          .by_default("10 with every kind, or all steps of a shorter stage"),
      integer("decay_steps", &S::decay_steps, 0, kLargeCount, "steps of the decay at the end")
          .or_share()
          .when(is_wsd, "kind = \"wsd\""),
      choice("decay", &S::decay, kDecayShapeNames,
             "curve of the decay: half a cosine, a line, or 1 - sqrt(p) at the fraction p of its "
             "steps")
          .when([=](const S& rate) { return is_wsd(rate) && rate.decay != S{}.decay; },
                "kind = \"wsd\"")
          .default_always(),  // unwritten at its default: keeps the hash of earlier runs
  }};
  return table;
}

const Table<ObjectiveConfig>& objective_table() {
  using S = ObjectiveConfig;
  static const Table<S> table{{
      choice("kind", &S::kind, kObjectiveKindNames,
             "loss: cross-entropy of the trained tokens, or cross-entropy times the number "
             "\"advantage\" of each JSON-lines record"),
  }};
  return table;
}

/// Evaluates on held-out problems if the data are generated; for files there is no
/// way to hold documents back.
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
          integer("step", &S::step, 1, kLargeCount,
                  "number of steps of the stage before the change")
              .or_share()
              .required(),
          text("recipe", &S::recipe, "a recipe's name or file", "recipe of the steps after it",
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
    if (last + 1 >= stage.steps) {
      table.fail("step", {.reason = fmt::format(
                              "after {} steps the stage has no step of another recipe: it has {}",
                              last, stage.steps),
                          .accepted = "fewer tables of recipe_at"});
    }
    if (step <= last || step >= stage.steps) {
      table.refuse("step", {.found = fmt::format("{} steps", step),
                            .accepted = fmt::format("{}, after those before it",
                                                    integers(last + 1, stage.steps - 1))});
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
                 "the loss exceeds this multiple of its running mean; 0: off"),
          number("gradient_norm", &S::gradient_norm, 0.0, kNoLargestNumber,
                 "the gradient norm exceeds this multiple of its running mean; 0: off"),
          number("saturation", &S::saturation, 0.0, 1.0,
                 "at a logged step, more than this fraction of an operand's elements saturates; 0: "
                 "off"),
          boolean(
              "nonfinite", &S::nonfinite,
              "the loss or the gradient norm is not finite; that step does not update the weights"),
          integer("window", &S::window, 1, kLargeCount,
                  "steps of the running means, and first steps of the stage without a decision")
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
               "recipe of the steps after a criterion holds", is_not_empty)
              .required()
              .not_hashed(),
      },
      {shared(MemberTable("when", &S::when, fallback_criteria_table, "criteria; one is enough")
                  .always())},
      [](const TomlReader& reader, const S& fallback) {
        check_recipe_name(reader, fallback.recipe);
        const FallbackCriteria& when = fallback.when;
        if (when.loss_spike > 0 || when.gradient_norm > 0 || when.saturation > 0 || when.nonfinite)
          return;
        reader.fail(
            "when",
            {.reason = "nothing makes the stage fall back",
             .accepted = "at least one of loss_spike, gradient_norm, saturation, nonfinite"});
      }};
  return table;
}

void check_stage(const TomlReader& reader, const StageConfig& stage) {
  const LearningRateSchedule& rate = stage.learning_rate;
  if (rate.warmup_steps + rate.decay_steps > stage.steps) {
    inner_reader(reader, "learning_rate")
        ->fail("warmup_steps",
               {.reason =
                    fmt::format("warmup_steps = {} and decay_steps = {} do not fit into steps = {}",
                                rate.warmup_steps, rate.decay_steps, stage.steps)});
  }
  const std::vector<SourceConfig>& sources = stage.data.sources;
  const std::optional<TomlReader> eval = inner_reader(reader, "eval");
  if (eval && !eval->has("data") && !std::all_of(sources.begin(), sources.end(), is_generated)) {
    eval->fail("data",
               {.reason = "missing; a stage that reads files names its held-out documents"});
  }
  check_recipe_name(reader, stage.recipe);
  check_recipe_at(reader, stage);
  if (stage.objective.kind == ObjectiveKind::policy_gradient && stage.fallback &&
      stage.fallback->when.loss_spike > 0) {
    inner_reader(*inner_reader(reader, "fallback"), "when")
        ->fail("loss_spike",
               {.reason =
                    "compares losses with their mean, which advantages may make zero or negative",
                .accepted = "gradient_norm, saturation, nonfinite"});
  }
  if (stage.batch_sequences % stage.micro_batch_sequences != 0) {
    reader.fail(
        "micro_batch_sequences",
        {.found = fmt::to_string(stage.micro_batch_sequences),
         .reason = fmt::format("does not divide batch_sequences = {}", stage.batch_sequences)});
  }
}

/// The former key of outlier channels, before other stresses existed. Stored runs without outlier
/// channels contain it and can still be read.
class FormerOutliers : public InnerTable<StageConfig> {
 public:
  FormerOutliers() : InnerTable("planted_outliers") {}

  void read(TomlReader& outer, StageConfig&) const override {
    if (!outer.has(word)) return;
    const bool has_none = outer.raw()[word]["channels"].value_or(std::int64_t{-1}) == 0;
    if (!has_none) {
      outer.fail(word, {.reason = "is a stress now",
                        .accepted = "[[stages.stress]] with kind = \"outlier_channels\""});
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
           "name of the stage, also in --set stages.NAME.KEY", is_stage_name)
          .required(),
      choice("kind", &S::kind, kStageKindNames,
             "kind of training: sft on the answers to prompts, the others on running text"),
      integer("steps", &S::steps, 1, kLargeCount, "number of optimizer steps").counting_steps(),
      integer("batch_sequences", &S::batch_sequences, 1, kLargeCount,
              "sequences in one optimizer step"),
      integer("micro_batch_sequences", &S::micro_batch_sequences, 1, kLargeCount,
              "sequences in one forward and backward pass; divides batch_sequences")
          .otherwise([](const S& stage) { return stage.batch_sequences; }, "batch_sequences"),
      integer("sequence_length", &S::sequence_length, 2, kLargeCount,
              "tokens of a sequence; at most model.max_position_embeddings"),
      text("recipe", &S::recipe, "a recipe's name or file, or \"\"",
           "recipe of the stage; \"\": that of the run")
          .not_hashed(),
      boolean("reset_optimizer", &S::reset_optimizer, "start the stage with moments of zero"),
      boolean("reset_amax_history", &S::reset_amax_history,
              "start the stage with empty amax histories"),
      boolean("restart_data", &S::restart_data,
              "read the data from their beginning, even if an earlier stage of this kind has read "
              "them"),
  };
}

}  // namespace

const Table<StageConfig>& stage_table() {
  using S = StageConfig;
  static const Table<S> table{
      stage_fields(),
      {shared(MemberTable("learning_rate", &S::learning_rate, learning_rate_table,
                          "schedule of the learning rate over the steps of the stage")
                  .starts(usual_learning_rate)),
       shared(MemberTable("objective", &S::objective, objective_table,
                          "what the steps of the stage minimize")),
       shared(TableList("stress", &S::stress, stress_table,
                        "disturbances that test a recipe, the same for every recipe")),
       shared(FormerOutliers()),
       shared(MemberTable("data", &S::data, data_table, "training data of the stage")
                  .starts(usual_data)),
       shared(OptionalTable<S, EvalConfig>("eval", &S::eval, eval_table,
                                           "evaluations on held-out data; none without the table",
                                           usual_eval)),
       shared(TableList("recipe_at", &S::recipe_at, recipe_switch_table,
                        "changes of the recipe within the stage")),
       shared(OptionalTable<S, FallbackConfig>(
           "fallback", &S::fallback, fallback_table,
           "switch to another recipe for the rest of the stage when a criterion holds"))},
      check_stage,
      &S::steps};
  return table;
}

}  // namespace fp8lab
