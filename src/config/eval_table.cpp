// The [stages.eval] tables of run files: what is evaluated, sampled and rolled out.
#include <fmt/format.h>

#include <algorithm>

#include "src/config/config_names.hpp"
#include "src/config/run_tables.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

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

}  // namespace

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

const Table<EvalConfig>& eval_table() {
  using S = EvalConfig;
  static const Table<S> table{
      {
          integer("every_steps", &S::every_steps, 1, kLargeCount,
                  "steps between held-out losses, also taken at the end of the stage")
              .or_share(),
          integer("sequences", &S::sequences, 1, kLargeCount, "sequences of the held-out loss"),
          boolean(
              "weights_in_bf16", &S::weights_in_bf16,
              "the held-out loss once more in bf16, after the stage: what its weights are worth "
              "without the arithmetic of its recipe"),
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

}  // namespace fp8lab
