#include "src/config/tables/size_limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/architecture/parts.hpp"
#include "src/config/reading/toml_reader.hpp"

namespace fp8lab {
namespace {

double d(std::int64_t value) { return static_cast<double>(value); }

/// Returns the elements that a forward pass saves for one token.
double activations_of_token(const ModelConfig& model) {
  const Declaration declaration = declaration_of(model);
  double elements = 0;
  for (const SavedDeclaration& saved : declaration.saved()) elements += d(saved.extent);
  return elements;
}

void check_eval_size(const TomlReader& table, const StageConfig& stage) {
  const EvalConfig& eval = *stage.eval;
  const double tokens = d(eval.sequences) * d(stage.sequence_length);
  if (tokens > kMostEvaluatedTokens) {
    table.fail("eval",
               {.reason = fmt::format("sequences = {} of {} tokens are {:.3g} tokens an evaluation",
                                      eval.sequences, stage.sequence_length, tokens),
                .accepted = fmt::format("at most {:.0f}", kMostEvaluatedTokens)});
  }
  if (d(eval.exact_match) > kMostAnswers) {
    table.fail("eval", {.reason = fmt::format("exact_match = {} answers", eval.exact_match),
                        .accepted = fmt::format("at most {:.0f}", kMostAnswers)});
  }
  if (!eval.pass_at_k) return;
  const double answers = d(eval.pass_at_k->problems) * d(eval.pass_at_k->samples);
  if (answers > kMostAnswers) {
    table.fail("eval",
               {.reason = fmt::format("pass_at_k: {} problems with {} samples are {:.0f} answers",
                                      eval.pass_at_k->problems, eval.pass_at_k->samples, answers),
                .accepted = fmt::format("at most {:.0f}", kMostAnswers)});
  }
}

}  // namespace

double parameter_count(const ModelConfig& model) {
  const Declaration declaration = declaration_of(model);
  double count = 0;
  for (const ParameterDeclaration& parameter : declaration.parameters()) {
    count += d(parameter.rows) * d(parameter.cols);
  }
  return count;
}

void check_model_size(const TomlReader& table, const ModelConfig& model) {
  const double count = parameter_count(model);
  if (count <= kMostParameters) return;
  const std::pair<std::int64_t, const char*> sizes[] = {
      {model.vocab_size, "vocab_size"},
      {model.hidden_size, "hidden_size"},
      {model.intermediate_size, "intermediate_size"},
      {model.num_attention_heads, "num_attention_heads"},
      {model.num_key_value_heads, "num_key_value_heads"}};
  table.fail(
      std::max_element(std::begin(sizes), std::end(sizes))->second,
      {.reason = fmt::format("vocab_size = {}, hidden_size = {}, intermediate_size = {}, {} layers "
                             "and {} heads of {} make {:.3g} parameters",
                             model.vocab_size, model.hidden_size, model.intermediate_size,
                             model.layer_count(), model.num_attention_heads, model.head_dim, count),
       .accepted = fmt::format("at most {:.3g}", kMostParameters)});
}

void check_stage_size(const TomlReader& table, const StageConfig& stage, const ModelConfig& model) {
  const double length = d(stage.sequence_length);
  const double step = d(stage.batch_sequences) * length;
  const double once = d(stage.micro_batch_sequences) * length;
  if (step > kMostStepTokens) {
    table.fail("batch_sequences",
               {.found = fmt::to_string(stage.batch_sequences),
                .reason = fmt::format("sequences of {} tokens are {:.3g} tokens a step",
                                      stage.sequence_length, step),
                .accepted = fmt::format("at most {:.0f}", kMostStepTokens)});
  }
  if (once > kMostMicroBatchTokens) {
    table.fail("micro_batch_sequences",
               {.found = fmt::to_string(stage.micro_batch_sequences),
                .reason = fmt::format("sequences of {} tokens are {:.3g} tokens at once",
                                      stage.sequence_length, once),
                .accepted = fmt::format("at most {:.0f}", kMostMicroBatchTokens)});
  }
  const double activations = once * activations_of_token(model);
  if (activations > kMostActivations) {
    table.fail("micro_batch_sequences",
               {.found = fmt::format("{:.0f}", once),
                .reason = fmt::format("tokens at once through this model are {:.3g} activations",
                                      activations),
                .accepted = fmt::format("at most {:.3g}", kMostActivations)});
  }
  if (stage.eval) check_eval_size(table, stage);
}

void check_steps(const TomlReader& document, const std::vector<StageConfig>& stages) {
  double steps = 0;
  for (const StageConfig& stage : stages) steps += d(stage.steps);
  if (steps <= d(kMostSteps)) return;
  document.fail("stages", {.found = fmt::format("{:.0f}", steps),
                           .reason = "steps of all stages",
                           .accepted = fmt::format("at most {}", kMostSteps)});
}

}  // namespace fp8lab
