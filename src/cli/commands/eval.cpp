// fp8lab eval: evaluates a model on held-out data.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/assessment/document_losses.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/evaluation_data.hpp"
#include "src/cli/inputs/loaded_model.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/toml_text.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/evaluation/held_out.hpp"
#include "src/io/shell_word.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

Options eval_options() {
  Options options(
      "fp8lab eval SOURCE\n"
      "Evaluates a run directory, a checkpoint, or a Hugging Face folder. A run is evaluated as "
      "its\n"
      "last stage was; each option below replaces one setting");
  options.add("source", value<std::string>(), "SOURCE");
  add_model_options(options, all_backends());
  options.add("data", value<std::vector<std::string>>(),
              "held-out documents: .jsonl or .txt files, or token shards; repeatable");
  options.add(
      "form", one_of({"running_text", "prompt_response"}),
      "format of --data (default: running_text for .txt files, records with \"text\" and shards "
      "without a loss mask)");
  options.add(
      "sequences", value<std::int64_t>(),
      "number of sequences of the held-out loss (default: the run's, else 16, and at most what "
      "--data fills)");
  options.add("exact-match", value<std::int64_t>(),
              "number of problems that are answered by greedy decoding");
  options.add("pass-at", value<std::vector<std::int64_t>>(), "a k of pass@k; repeatable");
  options.add("samples", value<std::int64_t>(), "sampled answers for each problem of pass@k");
  options.add("problems", value<std::int64_t>(), "number of problems of pass@k");
  options.add("temperature", value<double>(), "sampling temperature of pass@k and rollouts");
  options.add("top-k", value<std::int64_t>(), "sample from the K likeliest tokens; 0: from all");
  options.add("top-p", value<double>(),
              "sample from the likeliest tokens whose probabilities sum to P");
  options.add("seed", value<std::int64_t>(), "random seed of sampling");
  options.add("max-new-tokens", value<std::int64_t>(), "longest answer in tokens");
  options.add("multiple-choice", value<std::string>(),
              "JSON-lines file of multiple-choice questions");
  options.add("rollout-recipe", value<std::string>(),
              "recipe that generates rollouts, which --recipe then scores");
  options.add("rollouts", value<std::int64_t>(),
              "number of prompts that --rollout-recipe completes");
  options.add_set("KEY=VALUE: a key of [stages.eval] (src/evaluation/README.md), repeatable",
                  "stages.eval.");
  options.add("json", "print one JSON object");
  return options;
}

/// Returns what the options set in the evaluation of `stage`; `own` is the run's own evaluation.
OptionAssignments eval_assignments(const Values& values, const std::string& stage,
                                   const std::optional<EvalConfig>& own) {
  const std::string table = "stages." + stage + ".eval.";
  OptionAssignments out(values, "eval");
  add_data(values, stage, out);
  out.add("sequences", table + "sequences");
  out.add("exact-match", table + "exact_match");
  out.add("max-new-tokens", table + "max_new_tokens");
  out.add("multiple-choice", table + "multiple_choice");
  out.add("pass-at", table + "pass_at_k.k");
  out.add("samples", table + "pass_at_k.samples");
  out.add("problems", table + "pass_at_k.problems");
  out.add("rollout-recipe", table + "rollout.recipe");
  out.add("rollouts", table + "rollout.prompts");
  const bool samples =
      values.count("pass-at") + values.count("samples") + values.count("problems") != 0;
  const bool rollouts = values.count("rollout-recipe") + values.count("rollouts") != 0;
  const bool own_samples = own && own->pass_at_k, own_rollouts = own && own->rollout;
  for (const std::string part : {"pass_at_k.", "rollout."}) {
    if (part == "rollout." ? !rollouts && !own_rollouts : !samples && !own_samples) continue;
    out.add("temperature", table + part + "temperature");
    out.add("top-k", table + part + "top_k");
    out.add("top-p", table + part + "top_p");
    out.add("seed", table + part + "seed");
  }
  out.name_key("pass-at", table + "pass_at_k");
  out.name_key("rollout-recipe", table + "rollout");
  out.add_set(table);
  return out;
}

ordered_json to_json(const Evaluation& evaluation) {
  ordered_json json;
  json["loss"] = evaluation.held_out.mean;
  json["sources"] = ordered_json::array();
  for (const HeldOutLoss::Source& source : evaluation.held_out.sources) {
    json["sources"].push_back({{"name", source.name},
                               {"tokens", source.tokens},
                               {"loss", source.loss},
                               {"perplexity", std::exp(source.loss)}});
    if (source.bits_per_byte >= 0) json["sources"].back()["bits_per_byte"] = source.bits_per_byte;
  }
  if (const auto& phi = evaluation.held_out.sharpness) json["sharpness"] = *phi;
  if (const auto& match = evaluation.exact_match) {
    json["exact_match"] = {{"asked", match->asked}, {"right", match->right}};
  }
  if (const auto& pass = evaluation.pass_at_k) {
    json["pass_at_k"]["problems"] = pass->problems;
    for (const auto& [k, value] : pass->estimates) json["pass_at_k"][std::to_string(k)] = value;
  }
  if (const auto& choice = evaluation.multiple_choice) {
    json["multiple_choice"] = {
        {"questions", choice->questions}, {"sum", choice->sum}, {"per_token", choice->per_token}};
    if (choice->per_byte >= 0) json["multiple_choice"]["per_byte"] = choice->per_byte;
  }
  if (const auto& gap = evaluation.rollout) {
    json["rollout"] = {{"tokens", gap->tokens},
                       {"gap_mean", gap->mean},
                       {"gap_largest", gap->largest},
                       {"k3", gap->k3},
                       {"clipped_share", gap->clipped_share},
                       {"clipped_mean", gap->clipped_mean},
                       {"k3_by_position", ordered_json::array()}};
    for (const RolloutGap::Bucket& part : gap->buckets) {
      json["rollout"]["k3_by_position"].push_back(
          {{"first", part.first}, {"tokens", part.tokens}, {"k3", part.k3}});
    }
  }
  return json;
}

/// Returns a table with one row for each number.
std::string to_table(const Evaluation& evaluation) {
  const auto row = [](const std::string& name, double value, std::int64_t count,
                      const char* counted) {
    return fmt::format("{:<36} {:>14.6g}  {:>9} {}\n", name, value, count, counted);
  };
  std::string text;
  std::int64_t tokens = 0;
  for (const auto& source : evaluation.held_out.sources) tokens += source.tokens;
  text += row("loss", evaluation.held_out.mean, tokens, "tokens");
  text += row("perplexity", std::exp(evaluation.held_out.mean), tokens, "tokens");
  if (const auto& match = evaluation.exact_match) {
    const auto asked = static_cast<double>(match->asked);
    text += row("exact_match", match->asked > 0 ? static_cast<double>(match->right) / asked : 0.0,
                match->asked, "problems");
  }
  for (const Score& score : scores_of(evaluation)) {
    const char* counted = score.name.starts_with("pass@")    ? "problems"
                          : score.name.starts_with("choice") ? "questions"
                                                             : "tokens";
    text += row(score.name, score.value, score.count, counted);
  }
  return text;
}

/// Throws Error for options about answers that `eval` does not request.
void refuse_unused(const Values& values, const EvalConfig& eval) {
  const bool sampled = eval.pass_at_k || eval.rollout;
  if (!sampled) {
    refuse_given(values, "eval", {"temperature", "top-k", "top-p", "seed"},
                 "is for samples and rollouts; give --pass-at or --rollouts");
  }
  if (!sampled && eval.exact_match == 0) {
    refuse_given(values, "eval", {"max-new-tokens"},
                 "is for answers; give --exact-match, --pass-at or --rollouts");
  }
}

/// Returns true if `key` of the evaluation, or a part of it, is assigned.
bool names(const std::vector<Assignment>& assignments, const std::string& key) {
  const auto is_named = [&](const Assignment& assignment) {
    const std::size_t at = assignment.key.find(".eval." + key);
    if (at == std::string::npos) return false;
    const std::string rest = assignment.key.substr(at + 6 + key.size());
    return rest.empty() || rest.front() == '.';
  };
  return std::any_of(assignments.begin(), assignments.end(), is_named);
}

/// Returns true if the assignments select other documents than the run's.
bool names_files(const std::vector<Assignment>& assignments) {
  const auto replaces = [](const Assignment& assignment) {
    return assignment.key.ends_with(".eval.data");
  };
  return std::any_of(assignments.begin(), assignments.end(), replaces) ||
         names(assignments, "data.path") || names(assignments, "data.sources");
}

/// Replaces the paths of the run's evaluation by their present locations; paths set by
/// `assignments` are not changed.
void locate(const ModelSource& source, const std::vector<Assignment>& assignments,
            StageConfig& stage) {
  if (!source.run) return;
  if (!names_files(assignments)) stage.eval->data = source.places.evaluation_data(stage);
  if (!names(assignments, "multiple_choice")) {
    stage.eval->multiple_choice = source.places.questions(stage);
  }
}

/// Without --sequences, reads documents that the command names at most once: fewer sequences, and
/// for documents that fill none a shorter one, unless answers need the length. Returns a note on
/// it; empty if nothing changes.
std::string read_once(const std::vector<Assignment>& assignments, const DataSources& data,
                      StageConfig& stage) {
  EvalConfig& eval = *stage.eval;
  if (!names_files(assignments) || names(assignments, "sequences")) return {};
  const std::int64_t before = eval.sequences, length = stage.sequence_length;
  const std::int64_t filled = length_filled_by(data, length);
  const bool answers = eval.exact_match > 0 || eval.pass_at_k || eval.rollout;
  if (answers && filled < length) return {};
  stage.sequence_length = filled;
  const std::int64_t whole = sequences_of(data, stage.sequence_length);
  if (whole >= before && stage.sequence_length == length) return {};
  std::int64_t& micro = stage.micro_batch_sequences;
  micro = std::min(micro, whole);
  eval.sequences = std::min(before, whole) / micro * micro;
  return fmt::format(
      "the data fill {} sequence{} of {} tokens: {} evaluated, not {}, since no document counts "
      "twice",
      whole, whole == 1 ? "" : "s", stage.sequence_length,
      eval.sequences == 1 ? "1 is" : fmt::format("{} are", eval.sequences), before);
}

/// Throws Error if the contents used by the run's evaluation have changed.
void require_own_contents(const ModelSource& source, const std::vector<Assignment>& assignments,
                          const std::string& stage, const DataSources& data,
                          const EvaluationInputs& inputs) {
  if (!names(assignments, "data")) {
    source.require_unchanged("evaluation data of stage " + stage, content_hash(data),
                             "name data with --data");
  }
  if (!names(assignments, "multiple_choice") && !inputs.questions.hash.empty()) {
    source.require_unchanged("questions of stage " + stage, inputs.questions.hash,
                             "name questions with --multiple-choice");
  }
  if (!names(assignments, "rollout.recipe") && inputs.rollout_recipe) {
    source.require_unchanged("rollout recipe of stage " + stage, inputs.rollout_recipe->hash,
                             "name a recipe with --rollout-recipe");
  }
}

/// Throws Error if there is neither a run nor other held-out data.
void require_data(const ModelSource& source, const std::vector<Assignment>& assignments) {
  if (source.run || names(assignments, "data")) return;
  throw InputError({.where = "eval",
                    .key = "--data",
                    .reason = fmt::format("is missing: {} is no run with held-out data of its own",
                                          source.name)});
}

/// Throws RuntimeFailure for a loss that is not finite, after it has been printed.
void require_finite_loss(const HeldOutLoss& loss, const std::string& source,
                         const std::string& recipe) {
  if (!loss.nonfinite) return;
  throw RuntimeFailure(
      fmt::format("eval: {} tokens have a loss that is not finite, the first in document {} of {}; "
                  "which weight "
                  "or activation is too large for {}: fp8lab quantize {} --recipe {} --worst 0",
                  loss.nonfinite->tokens, loss.nonfinite->document, loss.nonfinite->source, recipe,
                  shell_path(source), recipe));
}

/// Throws Error for several recipes, with the command that accepts them.
void refuse_recipes(const std::vector<std::string>& arguments) {
  std::string recipes;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string name;
    if (arguments[i] == "--recipe" && i + 1 < arguments.size()) name = arguments[++i];
    if (arguments[i].starts_with("--recipe=")) name = arguments[i].substr(9);
    if (name.empty()) continue;
    ++count;
    recipes += " " + shell_option("--recipe", name);
  }
  if (count < 2) return;
  throw InputError(
      {.where = "eval",
       .key = "--recipe",
       .reason = fmt::format(
           "is given {} times; a table of several recipes is what fp8lab assess MODEL{} makes",
           count, recipes)});
}

/// Throws Error for schedule settings: a separate evaluation runs exactly once.
void refuse_schedule(const std::vector<Assignment>& assignments) {
  for (const Assignment& assignment : assignments) {
    if (!assignment.key.ends_with(".eval.every_steps")) continue;
    throw InputError({.where = "eval",
                      .key = "--set",
                      .found = "every_steps",
                      .reason = ": is when a stage is evaluated in training, not read here"});
  }
}

}  // namespace

int eval(const std::vector<std::string>& arguments) {
  refuse_recipes(arguments);
  const Values values = parse_arguments("eval", eval_options(), arguments, {{"source", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  const ModelSource source =
      open_model(required(values, "source", "eval"), folders_to_look_in(values, "eval"));
  const RunConfig plain = model_run(source, values, "eval");
  const OptionAssignments options =
      eval_assignments(values, last_stage(plain).name, last_stage(plain).eval);
  const std::vector<Assignment>& assignments = options.all();
  refuse_schedule(assignments);
  require_data(source, assignments);
  RunConfig run = model_run(source, values, "eval", options);
  StageConfig& stage = run.stages.back();
  if (!stage.eval) {
    throw InputError({.where = "eval",
                      .reason = fmt::format("stage {} of {} has no evaluation; give --data",
                                            stage.name, source.name)});
  }
  refuse_unused(values, *stage.eval);
  PhaseLine phase;
  phase.begin("opening the data");
  locate(source, assignments, stage);
  const DataSources data = open_sources(stage.eval->data, source.vocabulary, "eval");
  print_notes(vocabulary_notes(data, source.vocabulary));
  print_notes(document_notes(values, stage.eval->data, data));
  check_targets(data, stage.sequence_length, "eval");
  const std::string fewer = read_once(assignments, data, stage);
  const bool own_rollouts = !names(assignments, "rollout.recipe");
  const EvaluationInputs inputs =
      read_evaluation_inputs(*stage.eval, data, run.model, stage.sequence_length, "eval",
                             own_rollouts ? run.recorded : RecipeTexts());
  require_own_contents(source, assignments, stage.name, data, inputs);
  phase.begin("");
  LoadedModel model(source, run, values);
  Evaluator evaluator(model.backend(), model.parameters(), model.transformer(), *stage.eval, data,
                      inputs);
  const std::int64_t micro = stage.micro_batch_sequences;
  const std::int64_t sequences = (stage.eval->sequences + micro - 1) / micro * micro;
  if (values.count("sequences") != 0 && sequences != stage.eval->sequences) {
    print_notes(
        {fmt::format("{} sequences are evaluated, not {}: whole batches of {} "
                     "(--sequences-together)",
                     sequences, stage.eval->sequences, micro)});
  }
  if (!fewer.empty()) print_notes({fewer});
  const std::string repeated = repetition_note(data, sequences, stage.sequence_length, "sequences");
  if (!repeated.empty()) print_notes({repeated});
  PartsLine parts("eval", PartsLine::First::alike);
  evaluator.report_to(parts.report());
  const Evaluation evaluation = evaluator.evaluate(model.context(), true);
  parts.clear();
  if (values.count("json") != 0) {
    ordered_json json = {{"source", source.name},
                         {"recipe", model.recipe().name},
                         {"recipe_hash", model.recipe().hash},
                         {"backend", model.backend().name()},
                         {"device", model.backend().device()}};
    json.update(to_json(evaluation));
    fmt::print("{}\n", json_text(json));
  } else {
    fmt::print("{} in {} on {}\n{}", source.name, model.recipe().name, model.backend().device(),
               to_table(evaluation));
  }
  require_finite_loss(evaluation.held_out, source.name, model.recipe().name);
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
