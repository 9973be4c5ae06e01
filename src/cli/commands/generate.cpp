// fp8lab generate: completes prompts in the numerics of a recipe.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/loaded_model.hpp"
#include "src/cli/inputs/model_source.hpp"
#include "src/cli/options/backend_option.hpp"
#include "src/cli/options/generation_options.hpp"
#include "src/cli/progress.hpp"
#include "src/config/config.hpp"
#include "src/evaluation/generator.hpp"
#include "src/io/printable.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kGenerate = "generate";

Options generate_options() {
  Options options(
      "fp8lab generate SOURCE --prompt TEXT | --chat TEXT | --prompts FILE\n"
      "SOURCE is a run directory, a checkpoint, or a Hugging Face folder. Text is encoded by the\n"
      "tokenizer.json of that folder or beside the run's shards (src/data/README.md), else as "
      "bytes.\n"
      "A prompt begins as a document of the training data does; special tokens are recognised");
  options.add("source", value<std::string>(), "SOURCE");
  add_model_options(options, all_backends());
  add_prompt_options(options);
  options.add("samples", value<std::uint32_t>(1), "number of completions of each prompt");
  options.add("max-new-tokens", value<std::int64_t>(64), "longest completion in tokens");
  add_sampling_options(options, 0.0, "sampling temperature; 0: greedy decoding");
  options.add("together", value<std::int64_t>(64), "batch size of decoding");
  options.add("prefill-chunk", value<std::int64_t>(0),
              "prefill size: prompt tokens of one forward pass; 0: as many as fit");
  options.add("log-probabilities", "add the log-probability of each new token to the JSON");
  options.add("json", "print one JSON object for each completion");
  return options;
}

std::vector<Prompt> with_samples(const std::vector<std::vector<std::int32_t>>& texts,
                                 std::uint32_t samples) {
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    for (std::uint32_t sample = 0; sample < samples; ++sample) {
      prompts.push_back({texts[i], static_cast<std::uint32_t>(i), sample});
    }
  }
  return prompts;
}

std::int64_t longest(const std::vector<Prompt>& prompts) {
  std::size_t length = 0;
  for (const Prompt& prompt : prompts) length = std::max(length, prompt.tokens.size());
  return static_cast<std::int64_t>(length);
}

/// Returns notes on completions that were ended by neither the end token nor --max-new-tokens.
std::vector<std::string> cut_short(const std::vector<Completion>& completions,
                                   std::int64_t max_new_tokens, std::int64_t positions) {
  const auto cut =
      std::count_if(completions.begin(), completions.end(), [&](const Completion& completion) {
        return !completion.ended &&
               static_cast<std::int64_t>(completion.tokens.size()) < max_new_tokens;
      });
  if (cut == 0) return {};
  return {
      fmt::format("{} of {} completions end at {} tokens with their prompt (--sequence-length), "
                  "before {} new tokens",
                  cut, completions.size(), positions, max_new_tokens)};
}

void print(const std::vector<Prompt>& prompts, const std::vector<Completion>& completions,
           const Vocabulary& vocabulary, const Values& values) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Completion& completion = completions[i];
    const std::string text =
        vocabulary.has_text() ? vocabulary.decode(completion.tokens) : std::string();
    if (values.count("json") == 0) {
      fmt::print("--- prompt {} sample {}: {} tokens{}\n{}\n", prompts[i].problem,
                 prompts[i].sample, completion.tokens.size(), completion.ended ? ", ended" : "",
                 vocabulary.has_text() ? printable_lines(text)
                                       : fmt::format("{}", fmt::join(completion.tokens, " ")));
      continue;
    }
    ordered_json json = {{"prompt", prompts[i].problem},
                         {"sample", prompts[i].sample},
                         {"ended", completion.ended},
                         {"tokens", completion.tokens}};
    if (vocabulary.has_text()) json["text"] = text;
    if (values.count("log-probabilities") != 0) {
      json["log_probabilities"] = completion.log_probabilities;
    }
    fmt::print("{}\n", json.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }
}

}  // namespace

int generate(const std::vector<std::string>& arguments) {
  const Values values = parse_arguments(kGenerate, generate_options(), arguments, {{"source", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("log-probabilities") > values.count("json")) {
    throw InputError({.where = "generate", .key = "--log-probabilities", .reason = "needs --json"});
  }
  const ModelSource source =
      open_model(required(values, "source", kGenerate), folders_to_look_in(values, kGenerate));
  const RunConfig run = model_run(source, values, kGenerate);
  const Vocabulary vocabulary = find_vocabulary(values, source, run, kGenerate);
  GenerationConfig config;
  config.sampling = read_sampling(values, kGenerate);
  config.max_new_tokens =
      checked_value<std::int64_t>(values, kGenerate, "max-new-tokens", 1, 1 << 20);
  check_shortest(config.sampling, kGenerate, config.max_new_tokens);
  config.end = end_token(values, kGenerate, vocabulary, run.model.vocab_size);
  config.log_probabilities = values.count("log-probabilities") != 0;
  config.prefill_chunk = checked_value<std::int64_t>(values, kGenerate, "prefill-chunk", 0, 65536);
  const std::vector<Prompt> prompts =
      with_samples(read_prompts(values, source, run, kGenerate, vocabulary),
                   checked_value<std::uint32_t>(values, kGenerate, "samples", 1, 65536));
  LoadedModel model(source, run, values);
  const BatchShape& shape = model.transformer().shape();
  const std::int64_t capacity =
      std::min(longest(prompts) + config.max_new_tokens, shape.sequence_length);
  const auto count = static_cast<std::int64_t>(prompts.size());
  const std::int64_t together =
      std::min({checked_value<std::int64_t>(values, kGenerate, "together", 1, 65536), count,
                shape.logit_rows()});
  Generator generator(model.backend(), model.transformer(), together, capacity);
  model.transformer().prepare_weights(model.context());
  PartsLine parts(kGenerate, PartsLine::First::alike);
  const std::vector<Completion> completions =
      generator.generate(model.context(), prompts, config, parts.report());
  parts.clear();
  print(prompts, completions, vocabulary, values);
  print_notes(cut_short(completions, config.max_new_tokens, shape.sequence_length));
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
