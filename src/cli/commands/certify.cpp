// fp8lab certify: checks whether generation has the same bits as training.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/finite_json.hpp"
#include "src/cli/inputs/checkpoint_source.hpp"
#include "src/cli/inputs/evaluation_data.hpp"
#include "src/cli/inputs/loaded_model.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/generation_options.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/cli/progress.hpp"
#include "src/config/reading/words.hpp"
#include "src/config/recipe/model_recipe.hpp"
#include "src/data/mixture.hpp"
#include "src/evaluation/certificate.hpp"
#include "src/train/checkpoint/identity.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCertify = "certify";
constexpr std::int64_t kMostTogether = 4096;

Options certify_options() {
  Options options(
      "fp8lab certify SOURCE [--recipe TRAINING] [--rollout-recipe GENERATION]\n"
      "SOURCE is a run directory, a checkpoint, or a Hugging Face folder. Completes prompts with "
      "a\n"
      "key-value cache under the recipe of generation: sampled and greedy, in several batch and\n"
      "prefill sizes. Compares the log-probability of each token, bit for bit, with that of a "
      "full\n"
      "forward pass under the recipe of training. Status 3: the recipes promise the same bits, "
      "and\n"
      "some differ");
  options.add("source", value<std::string>(), "SOURCE");
  add_model_options(options, quantizing_backends());
  options.add("rollout-recipe", value<std::string>(),
              "recipe of generation (default: that of training)");
  add_prompt_options(options);
  options.add("data", value<std::vector<std::string>>(),
              "documents whose prompts are completed: .jsonl or .txt files, or token shards; "
              "repeatable (default: held-out data of the run's last stage, else its data)");
  options.add("form", one_of({"running_text", "prompt_response"}),
              "format of --data; with running_text the first half of each document is the prompt");
  options.add(
      "rollouts", value<std::int64_t>(),
      "number of completions, greedy and sampled each; prompts repeat (default: the largest batch, "
      "or the number of given prompts)");
  options.add("max-new-tokens", value<std::int64_t>(64), "longest completion in tokens");
  add_sampling_options(options, 1.0, "sampling temperature, above 0; greedy decoding runs as well");
  options.add("together", value<std::string>("1,8,64"),
              "batch sizes of decoding, one after another");
  options.add("prefill-chunk", value<std::string>("16,64"),
              "prefill sizes in tokens, one after another, at the largest batch size");
  options.add("bucket", value<std::int64_t>(16), "positions of one row of the table by position");
  options.add("json", value<std::string>(), "also write every number to this file");
  return options;
}

/// Parses "1,8,64". Throws Error unless the numbers are from 1 to `most` and distinct.
std::vector<std::int64_t> numbers_of(const Values& values, const char* option, std::int64_t most) {
  const std::string text = values[option].as<std::string>();
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const auto number = number_of<std::int64_t>(std::string_view(text).substr(at, end - at));
    const bool known = number && std::count(numbers.begin(), numbers.end(), *number) != 0;
    if (!number || known || *number < 1 || *number > most) {
      throw InputError({.where = std::string(kCertify),
                        .key = fmt::format("--{}", option),
                        .found = text,
                        .accepted = fmt::format(
                            "different numbers from 1 to {} with commas, such as 1,8", most)});
    }
    numbers.push_back(*number);
    at = end + 1;
  }
  return numbers;
}

using Texts = std::vector<std::vector<std::int32_t>>;

/// Returns the first `count` prompts of `data` that leave room for `tokens` tokens within `limit`.
Texts prompts_of(const DataSources& data, std::int64_t count, std::int64_t tokens,
                 std::int64_t limit) {
  Texts prompts;
  const std::int64_t room = std::max<std::int64_t>(limit - tokens, 1);
  for (const auto& corpus : data.corpora) {
    for (std::int64_t i = 0; i < corpus->size(); ++i) {
      if (static_cast<std::int64_t>(prompts.size()) == count) break;
      const DocumentView document = corpus->document(i);
      const std::int64_t length = data.form == DataForm::running_text
                                      ? std::clamp<std::int64_t>(document.size / 2, 1, room)
                                      : prompt_length(document);
      if (length + tokens > limit) continue;
      std::vector<std::int32_t>& prompt = prompts.emplace_back();
      for (std::int64_t j = 0; j < length; ++j) prompt.push_back(document.token(j));
    }
  }
  data.require_unchanged();
  return prompts;
}

std::int64_t longest(const Texts& texts) {
  std::size_t length = 0;
  for (const auto& text : texts) length = std::max(length, text.size());
  return static_cast<std::int64_t>(length);
}

std::int64_t shortest(const Texts& texts) {
  std::size_t length = texts.front().size();
  for (const auto& text : texts) length = std::min(length, text.size());
  return static_cast<std::int64_t>(length);
}

/// The prompts to complete, the number of completions, and their limits.
struct Task {
  RunConfig run;
  std::vector<std::int64_t> batches;
  std::int64_t tokens = 0;    ///< maximum number of new tokens per sequence
  std::int64_t rollouts = 0;  ///< number of sequences
  Texts texts;                ///< prompts, at most one per sequence
  std::int32_t end = -1, padding = 0;
};

void take_prompts(const Values& values, const ModelSource& source, Task& task) {
  refuse_given(values, kCertify, {"data", "form"}, "is for prompts of documents");
  task.run = model_run(source, values, kCertify);
  const Vocabulary vocabulary = find_vocabulary(values, source, task.run, kCertify);
  task.texts = read_prompts(values, source, task.run, kCertify, vocabulary);
  const auto count = static_cast<std::int64_t>(task.texts.size());
  if (values.count("rollouts") == 0) task.rollouts = std::max(task.rollouts, count);
  task.texts.resize(static_cast<std::size_t>(std::min(task.rollouts, count)));
  task.end = end_token(values, kCertify, vocabulary, task.run.model.vocab_size);
  task.padding = vocabulary.padding();
}

/// Returns a run whose last stage evaluates on --data.
RunConfig run_with_data(const Values& values, const ModelSource& source) {
  const std::string stage = last_stage(model_run(source, values, kCertify)).name;
  OptionAssignments assignments(values, kCertify);
  add_data(values, stage, assignments);
  return model_run(source, values, kCertify, assignments);
}

void take_documents(const Values& values, const ModelSource& source, Task& task) {
  refuse_given(values, kCertify, {"vocabulary"}, "is for --prompt and --prompts");
  const bool own = values.count("data") == 0;
  if (own) refuse_given(values, kCertify, {"form"}, "is for --data");
  if (own && !source.run) {
    throw InputError({.where = std::string(kCertify),
                      .reason = fmt::format(
                          "{} is no run with data of its own; give --prompt, --prompts or --data",
                          source.name)});
  }
  task.run = own ? model_run(source, values, kCertify) : run_with_data(values, source);
  const StageConfig& stage = last_stage(task.run);
  const DataConfig files = !own         ? stage.eval->data
                           : stage.eval ? source.places.evaluation_data(stage)
                                        : source.places.training_data(stage);
  const DataSources data = open_sources(files, source.vocabulary, kCertify);
  if (own) {
    const std::string part = stage.eval ? "evaluation data of stage " : "training data of stage ";
    source.require_unchanged(part + stage.name, content_hash(data), "name data with --data");
  }
  print_notes(vocabulary_notes(data, source.vocabulary));
  task.texts = prompts_of(data, task.rollouts, task.tokens, stage.sequence_length);
  if (task.texts.empty()) {
    throw InputError({.where = std::string(kCertify),
                      .reason = fmt::format(
                          "no prompt of the data leaves room for {} tokens in a sequence of {}",
                          task.tokens, stage.sequence_length),
                      .accepted = "a smaller --max-new-tokens, or a larger --sequence-length"});
  }
  task.end = end_token(values, kCertify, data.vocabulary(), task.run.model.vocab_size);
  task.padding = data.vocabulary().padding();
}

Task open_task(const Values& values, const ModelSource& source) {
  Task task;
  task.batches = numbers_of(values, "together", kMostTogether);
  const std::int64_t largest = *std::max_element(task.batches.begin(), task.batches.end());
  task.tokens = checked_value<std::int64_t>(values, kCertify, "max-new-tokens", 1, 65536);
  task.rollouts = values.count("rollouts") == 0
                      ? largest
                      : checked_value<std::int64_t>(values, kCertify, "rollouts", largest, 65536);
  const bool has_prompts =
      values.count("prompt") + values.count("chat") + values.count("prompts") != 0;
  (has_prompts ? take_prompts : take_documents)(values, source, task);
  require_accepted_backend(values, task.run, source.name, kCertify);
  const std::int64_t most = last_stage(task.run).sequence_length;
  if (longest(task.texts) + task.tokens > most) {
    throw InputError(
        {.where = std::string(kCertify),
         .reason = fmt::format("a prompt of {} tokens and {} new ones do not fit a sequence of {}",
                               longest(task.texts), task.tokens, most),
         .accepted = "a smaller --max-new-tokens, or a larger --sequence-length"});
  }
  return task;
}

/// Returns the chunk sizes that split a prompt. Throws Error for a requested size that splits none.
std::vector<std::int64_t> chunks_of(const Values& values, const Texts& texts) {
  std::vector<std::int64_t> chunks = numbers_of(values, "prefill-chunk", 65536);
  const auto last = std::remove_if(chunks.begin(), chunks.end(), [&](std::int64_t chunk) {
    if (chunk < longest(texts)) return false;
    if (!given(values, "prefill-chunk")) return true;
    throw InputError(
        {.where = std::string(kCertify),
         .key = "--prefill-chunk",
         .found = fmt::to_string(chunk),
         .reason = fmt::format("splits no prompt: the longest has {} tokens", longest(texts))});
  });
  chunks.erase(last, chunks.end());
  return chunks;
}

/// `pass` is the number of tokens of a forward pass.
CertificateConfig certificate_config(const Values& values, const Task& task, std::int64_t pass) {
  const SamplingConfig sampled = read_sampling(values, kCertify);
  if (sampled.temperature == 0.0) {
    throw InputError({.where = std::string(kCertify),
                      .key = "--temperature",
                      .found = "0",
                      .accepted = "above 0; the likeliest tokens are taken as well"});
  }
  check_shortest(sampled, kCertify, task.tokens);
  SamplingConfig greedy;
  greedy.temperature = 0.0;
  greedy.min_new_tokens = sampled.min_new_tokens;
  CertificateConfig config;
  config.samplings = {sampled, greedy};
  config.max_new_tokens = task.tokens;
  config.end = task.end;
  config.padding = task.padding;
  config.bucket = checked_value<std::int64_t>(values, kCertify, "bucket", 1, 65536);
  const std::int64_t largest = *std::max_element(task.batches.begin(), task.batches.end());
  if (largest > pass) {
    throw InputError({.where = std::string(kCertify),
                      .key = "--together",
                      .found = fmt::to_string(largest),
                      .reason = fmt::format(": one forward pass takes {} tokens", pass),
                      .accepted = "a larger --sequences-together"});
  }
  for (const std::int64_t batch : task.batches) config.ways.push_back({batch, 0});
  for (const std::int64_t chunk : chunks_of(values, task.texts)) {
    config.ways.push_back({largest, chunk});
  }
  return config;
}

/// Returns all prompts in order, repeatedly with the next sample index.
std::vector<Prompt> repeated(const Texts& texts, std::int64_t count) {
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    prompts.push_back({texts[i % texts.size()], static_cast<std::uint32_t>(i % texts.size()),
                       static_cast<std::uint32_t>(i / texts.size())});
  }
  return prompts;
}

/// Returns "batch 1, 8, 64; cached, whole, prefill in chunks of 16, 64".
std::string covered(const CertificateConfig& config) {
  std::vector<std::int64_t> batches, chunks;
  for (const DecodingWay& way : config.ways) {
    (way.prefill_chunk == 0 ? batches : chunks)
        .push_back(way.prefill_chunk == 0 ? way.together : way.prefill_chunk);
  }
  std::string text = fmt::format("batch {}; cached, whole", fmt::join(batches, ", "));
  if (!chunks.empty()) text += fmt::format(", prefill in chunks of {}", fmt::join(chunks, ", "));
  return text;
}

std::string difference_words(const Comparison& worst) {
  std::string text =
      fmt::format("{} of {} tokens differ ({}), largest gap {:.3g}, K3 {:.3g}", worst.gap.different,
                  worst.gap.tokens, worst.name, worst.gap.largest, worst.gap.k3);
  if (worst.chosen_otherwise > 0) {
    text += fmt::format(", {} would have been chosen otherwise", worst.chosen_otherwise);
  }
  if (const auto& first = worst.first) {
    text += fmt::format(
        "; first at position {} of prompt {} sample {} at temperature {}: full passes of {} give "
        "{:.9g}, decoding {:.9g}",
        first->position, first->problem, first->sample, first->temperature, worst.reference,
        first->reference, first->rollout);
  }
  return text;
}

std::string verdict(const Certificate& certificate, const CertificateConfig& config) {
  const Comparison& worst = certificate.worst();
  if (!certificate.holds()) {
    return "FAILED, the recipes promise the same bits: " + difference_words(worst);
  }
  if (!certificate.is_exact()) return "gaps: " + difference_words(worst);
  return fmt::format("exact: 0 of {} tokens differ ({}){}", worst.gap.tokens, covered(config),
                     certificate.pair.is_exact() ? "" : ", though the recipes do not promise it");
}

void print_expectation(const char* what, const Expectation& expectation) {
  if (expectation.is_exact()) {
    fmt::print("{}: the same bits are due\n", what);
    return;
  }
  fmt::print("{}: the same bits are not due\n", what);
  for (const std::string& reason : expectation.reasons) fmt::print("  {}\n", reason);
}

void print_rows(const char* heading, const std::vector<Comparison>& comparisons) {
  std::size_t width = 0;
  for (const Comparison& row : comparisons) width = std::max(width, row.name.size());
  fmt::print("\n{}\n{:<{}}  {:>9} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}\n", heading, "", width,
             "tokens", "differ", "mean gap", "largest", "K3", "median", "99 %", "otherwise");
  for (const Comparison& row : comparisons) {
    fmt::print("{:<{}}  {:>9} {:>9} {:>10.3g} {:>9.3g} {:>9.3g} {:>9.3g} {:>9.3g} {:>9}\n",
               row.name, width, row.gap.tokens, row.gap.different, row.gap.mean, row.gap.largest,
               row.gap.k3, row.spread.quantiles[0], row.spread.quantiles[2], row.chosen_otherwise);
  }
}

/// Prints one line for the tokens between two edges of a histogram.
void print_distribution(const Comparison& row) {
  fmt::print("\n{}, by position in the completion\n{:>9} {:>9} {:>9} {:>9} {:>9}\n", row.name,
             "from", "tokens", "differ", "largest", "K3");
  for (const RolloutGap::Bucket& part : row.gap.buckets) {
    fmt::print("{:>9} {:>9} {:>9} {:>9.3g} {:>9.3g}\n", part.first, part.tokens, part.different,
               part.largest, part.k3);
  }
  fmt::print("by size of the gap\n{:>9} {:>9}\n{:>9} {:>9}\n", "from", "tokens", "none",
             row.spread.zero);
  for (std::size_t i = 0; i < row.spread.counts.size(); ++i) {
    const double from = i == 0 ? 0.0 : GapSpread::kEdges[i - 1];
    fmt::print("{:>9} {:>9}\n", i == 0 ? "above 0" : fmt::format("{:g}", from),
               row.spread.counts[i]);
  }
}

ordered_json to_json(const Comparison& row) {
  ordered_json json = {{"way", row.name},
                       {"reference", row.reference},
                       {"must_be_exact", row.must_be_exact},
                       {"tokens", row.gap.tokens},
                       {"different", row.gap.different},
                       {"chosen_otherwise", row.chosen_otherwise},
                       {"gap_mean", finite_json(row.gap.mean)},
                       {"gap_largest", finite_json(row.gap.largest)},
                       {"k3", finite_json(row.gap.k3)}};
  for (std::size_t i = 0; i < GapSpread::kShares.size(); ++i) {
    json["quantiles"].push_back(
        {{"share", GapSpread::kShares[i]}, {"gap", finite_json(row.spread.quantiles[i])}});
  }
  json["histogram"].push_back({{"from", 0.0}, {"tokens", row.spread.zero}});
  for (std::size_t i = 0; i < row.spread.counts.size(); ++i) {
    json["histogram"].push_back(
        {{"above", i == 0 ? 0.0 : GapSpread::kEdges[i - 1]}, {"tokens", row.spread.counts[i]}});
  }
  for (const RolloutGap::Bucket& part : row.gap.buckets) {
    json["by_position"].push_back({{"first", part.first},
                                   {"tokens", part.tokens},
                                   {"different", part.different},
                                   {"gap_largest", finite_json(part.largest)},
                                   {"k3", finite_json(part.k3)}});
  }
  if (const auto& first = row.first) {
    json["first_difference"] = {{"position", first->position},
                                {"prompt", first->problem},
                                {"sample", first->sample},
                                {"temperature", first->temperature},
                                {"full", finite_json(first->reference)},
                                {"decoded", finite_json(first->rollout)}};
  }
  return json;
}

ordered_json to_json(const Expectation& expectation) {
  return {{"exact", expectation.is_exact()}, {"reasons", expectation.reasons}};
}

/// The models being compared.
struct Pair {
  LoadedModel& model;
  Transformer& training;
  Transformer& generation;
  const Recipe& rollout_recipe;
};

void print_certificate(const Certificate& certificate, const Pair& pair, const Texts& texts,
                       const std::string& source, double temperature) {
  fmt::print("{}: training in {}, generation in {}, on {}\n", source, pair.model.recipe().name,
             pair.rollout_recipe.name, pair.model.backend().device());
  fmt::print(
      "{} sequences from {} prompts of {} to {} tokens, sampled at temperature {} and greedy\n",
      certificate.sequences, texts.size(), shortest(texts), longest(texts), temperature);
  print_expectation("training against generation", certificate.pair);
  if (!certificate.pair.is_exact()) {
    print_expectation("generation by itself", certificate.generation);
  }
  print_rows("training, whole sequences, against generation with a cache", certificate.training);
  print_rows("generation, whole sequences, against itself with a cache", certificate.whole);
  print_rows("training, documents packed without gaps, against generation with a cache",
             {certificate.packed});
  fmt::print(
      "never due there: the tiles of {} keys that attention sums start with the sequence, not "
      "with\n"
      "the document\n",
      pair.training.shape().attention.kv_tile);
  if (!certificate.is_exact()) print_distribution(certificate.worst());
}

ordered_json certificate_json(const Certificate& certificate, const Pair& pair,
                              const std::string& source, const std::string& words) {
  ordered_json json = {{"source", source},
                       {"recipe", pair.model.recipe().name},
                       {"recipe_hash", pair.model.recipe().hash},
                       {"rollout_recipe", pair.rollout_recipe.name},
                       {"rollout_recipe_hash", pair.rollout_recipe.hash},
                       {"backend", pair.model.backend().name()},
                       {"device", pair.model.backend().device()},
                       {"sequences", certificate.sequences},
                       {"kv_tile", pair.training.shape().attention.kv_tile},
                       {"verdict", words},
                       {"exact", certificate.is_exact()},
                       {"holds", certificate.holds()},
                       {"expected", to_json(certificate.pair)},
                       {"expected_of_generation", to_json(certificate.generation)}};
  for (const Comparison& row : certificate.training) json["training"].push_back(to_json(row));
  for (const Comparison& row : certificate.whole) json["whole"].push_back(to_json(row));
  json["packed"] = to_json(certificate.packed);
  return json;
}

}  // namespace

int certify(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments(kCertify, certify_options(), arguments, {{"source", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  check_output_files(values, kCertify, {"json"});
  const ModelSource source =
      open_model(required(values, "source", kCertify), folders_to_look_in(values, kCertify));
  const Task task = open_task(values, source);
  const StageConfig& stage = last_stage(task.run);
  const CertificateConfig config =
      certificate_config(values, task, stage.micro_batch_sequences * stage.sequence_length);

  PhaseLine phase;
  phase.begin("loading the model");
  LoadedModel model(source, task.run, values);
  const std::unique_ptr<Transformer> training = model.make_transformer(Purpose::training);
  Recipe rollout_recipe = model.recipe();
  std::unique_ptr<Transformer> other;
  if (values.count("rollout-recipe") != 0) {
    rollout_recipe =
        load_recipe_for(task.run.model, values["rollout-recipe"].as<std::string>(), kCertify);
    if (rollout_recipe.hash != model.recipe().hash) {
      other = make_rollout_model(model.backend(), model.parameters(), *training, rollout_recipe);
    }
  }
  const Pair pair{model, *training, other != nullptr ? *other : model.transformer(),
                  rollout_recipe};
  require_unread(values, kCertify, {"json"});
  phase.begin("");
  PartsLine parts(kCertify, PartsLine::First::alike);
  const Certificate certificate =
      fp8lab::certify(model.backend(), pair.training, pair.generation, model.context(),
                      repeated(task.texts, task.rollouts), config, parts.report());
  parts.clear();
  const std::string words = verdict(certificate, config);
  print_certificate(certificate, pair, task.texts, source.name,
                    config.samplings.front().temperature);
  fmt::print("\n{}\n", words);
  if (values.count("json") != 0) {
    write_json(values["json"].as<std::string>(),
               certificate_json(certificate, pair, source.name, words));
  }
  return certificate.holds() ? ExitCode::kSuccess : ExitCode::kMismatch;
}

}  // namespace fp8lab::cli
