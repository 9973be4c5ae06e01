// The [stages.eval] tables of run files: evaluations, samples and rollouts.
#include <fmt/format.h>

#include <algorithm>

#include "src/config/config_names.hpp"
#include "src/config/tables/run_tables.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

Field<PassAtKConfig> k_field() {
  Field<PassAtKConfig> field =
      row("k", &PassAtKConfig::k, "a list of integers from 1 to samples",
          "values of k: pass@k is the probability that one of k samples is right");
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
  reader.refuse(
      "k", {.found = fmt::format("more than there are samples, {}", largest),
            .accepted = fmt::format("a list of integers from 1 to samples = {}", pass.samples)});
}

const Table<PassAtKConfig>& pass_at_k_table() {
  using S = PassAtKConfig;
  static const Table<S> table = [] {
    Table<S> rows{{
        integer("problems", &S::problems, 1, 1 << 20, "number of problems"),
        integer("samples", &S::samples, 1, 65536, "sampled answers for each problem"),
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
             "recipe of generation; \"\": that of training")
            .not_hashed(),
        integer("prompts", &S::prompts, 1, 1 << 20, "number of prompts to complete"),
        number("clip", &S::clip, 0x1p-20, kNoLargestNumber,
               "probability ratios above this count as clipped"),
        integer("bucket", &S::bucket, 1, kLargeCount, "positions in one bucket of the average gap"),
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
    reader.fail(key, {.reason = "asks prompts",
                      .accepted = "data.form = \"prompt_response\" for questions and chats, or an "
                                  "evaluation without it"});
  }
}

}  // namespace

const Fields<SamplingConfig>& sampling_fields() {
  using S = SamplingConfig;
  static const Fields<S> rows = {
      number("temperature", &S::temperature, 0.0, 1000.0,
             "sampling temperature; 0: greedy decoding"),
      integer("top_k", &S::top_k, 0, kLargeCount,
              "sample from this many likeliest tokens; 0: from all"),
      number("top_p", &S::top_p, 0x1p-20, 1.0,
             "sample from the likeliest tokens whose probabilities sum to this"),
      integer("min_new_tokens", &S::min_new_tokens, 0, 65536, "shortest completion in tokens"),
      integer("seed", &S::seed, 0, kNoLargestInteger, "random seed of sampling"),
  };
  return rows;
}

const Table<EvalConfig>& eval_table() {
  using S = EvalConfig;
  static const Table<S> table{
      {
          integer("every_steps", &S::every_steps, 1, kLargeCount,
                  "steps between held-out losses; the end of the stage always has one")
              .or_share(),
          integer("sequences", &S::sequences, 1, kLargeCount,
                  "number of sequences of the held-out loss"),
          boolean("weights_in_bf16", &S::weights_in_bf16,
                  "at the end of the stage, also evaluate its weights in bf16: their loss without "
                  "the arithmetic of the recipe"),
          number("sharpness", &S::sharpness, 0.0, 1.0,
                 "relative change of each logit for the sharpness of the held-out loss, such as "
                 "5e-4; 0: not measured"),
          integer(
              "exact_match", &S::exact_match, 0, kLargeCount,
              "number of problems answered by greedy decoding at the end of the stage; 0: none"),
          integer("max_new_tokens", &S::max_new_tokens, 1, 65536, "longest answer in tokens"),
          text("multiple_choice", &S::multiple_choice, "a file, or \"\"",
               "file of multiple-choice questions for the end of the stage; \"\": none")
              .not_hashed(),
      },
      {shared(OptionalTable<S, PassAtKConfig>("pass_at_k", &S::pass_at_k, pass_at_k_table,
                                              "sampled answers at the end of the stage")),
       shared(OptionalTable<S, RolloutConfig>("rollout", &S::rollout, rollout_table,
                                              "completions that are generated under one recipe and "
                                              "scored under the recipe of training")),
       shared(MemberTable("data", &S::data, data_table,
                          "held-out data; absent keys are those of the stage's data")
                  .always())},
      check_eval};
  return table;
}

}  // namespace fp8lab
