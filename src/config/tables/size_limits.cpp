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
               fmt::format("sequences = {} of {} tokens are {:.3g} tokens an evaluation; "
                           "accepted: at most {:.0f}",
                           eval.sequences, stage.sequence_length, tokens, kMostEvaluatedTokens));
  }
  if (d(eval.exact_match) > kMostAnswers) {
    table.fail("eval", fmt::format("exact_match = {} answers; accepted: at most {:.0f}",
                                   eval.exact_match, kMostAnswers));
  }
  if (!eval.pass_at_k) return;
  const double answers = d(eval.pass_at_k->problems) * d(eval.pass_at_k->samples);
  if (answers > kMostAnswers) {
    table.fail("eval", fmt::format("pass_at_k: {} problems with {} samples are {:.0f} answers; "
                                   "accepted: at most {:.0f}",
                                   eval.pass_at_k->problems, eval.pass_at_k->samples, answers,
                                   kMostAnswers));
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
      fmt::format("vocab_size = {}, hidden_size = {}, intermediate_size = {}, {} layers and "
                  "{} heads of {} make {:.3g} parameters; accepted: at most {:.3g}",
                  model.vocab_size, model.hidden_size, model.intermediate_size, model.layer_count(),
                  model.num_attention_heads, model.head_dim, count, kMostParameters));
}

void check_stage_size(const TomlReader& table, const StageConfig& stage, const ModelConfig& model) {
  const double length = d(stage.sequence_length);
  const double step = d(stage.batch_sequences) * length;
  const double once = d(stage.micro_batch_sequences) * length;
  if (step > kMostStepTokens) {
    table.fail("batch_sequences",
               fmt::format("{} sequences of {} tokens are {:.3g} tokens a step; "
                           "accepted: at most {:.0f}",
                           stage.batch_sequences, stage.sequence_length, step, kMostStepTokens));
  }
  if (once > kMostMicroBatchTokens) {
    table.fail("micro_batch_sequences",
               fmt::format("{} sequences of {} tokens are {:.3g} tokens at once; accepted: at most "
                           "{:.0f}",
                           stage.micro_batch_sequences, stage.sequence_length, once,
                           kMostMicroBatchTokens));
  }
  const double activations = once * activations_of_token(model);
  if (activations > kMostActivations) {
    table.fail("micro_batch_sequences",
               fmt::format("{:.0f} tokens at once through this model are {:.3g} activations; "
                           "accepted: at most {:.3g}",
                           once, activations, kMostActivations));
  }
  if (stage.eval) check_eval_size(table, stage);
}

void check_steps(const TomlReader& document, const std::vector<StageConfig>& stages) {
  double steps = 0;
  for (const StageConfig& stage : stages) steps += d(stage.steps);
  if (steps <= d(kMostSteps)) return;
  document.fail("stages",
                fmt::format("{:.0f} steps of all stages; accepted: at most {}", steps, kMostSteps));
}

}  // namespace fp8lab
