// fp8lab generate: completions of prompts, in the numerics of a recipe.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/loaded_model.hpp"
#include "src/cli/model_source.hpp"
#include "src/cli/progress.hpp"
#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/data/prompt_text.hpp"
#include "src/evaluation/generator.hpp"
#include "src/io/file_kind.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

Options generate_options() {
  Options options(
      "fp8lab generate SOURCE --prompt TEXT | --prompts FILE\n"
      "SOURCE is a run directory, a checkpoint, or a Hugging Face folder. Text needs the "
      "byte-level\n"
      "vocabulary; python -m fp8lab.tokens --questions writes prompts of other tokenizers as ids");
  options.add("source", value<std::string>(), "SOURCE");
  add_model_options(options);
  options.add("prompt", value<std::vector<std::string>>(), "text, repeatable");
  options.add("prompts", value<std::string>(), "JSON-lines of {\"prompt\": TEXT or [ID, ...]}");
  options.add("samples", value<std::uint32_t>(1), "completions of each prompt");
  options.add("max-new-tokens", value<std::int64_t>(64), "of each completion");
  options.add("min-new-tokens", value<std::int64_t>(0), "before them no completion ends");
  options.add("temperature", value<double>(0.0), "0: always the likeliest token");
  options.add("top-k", value<std::int64_t>(0), "0: all tokens");
  options.add("top-p", value<double>(1.0), "");
  options.add("seed", value<std::uint64_t>(1), "of the draws");
  options.add("together", value<std::int64_t>(64), "sequences decoded together");
  options.add(
      "vocabulary", value<std::string>(),
      "\"bytes\", or a token_bytes.json (default: that of the run's data, of a folder that has "
      "one)");
  options.add("end", value<std::int32_t>(),
              "token that ends a completion (default: the vocabulary's)");
  options.add("log-probabilities", "of the new tokens, in JSON");
  options.add("json", "print one JSON object a completion");
  return options;
}

/// The value of an option. Throws Error when it is not within [least, most].
template <class T>
T checked(const Values& values, const char* option, T least, T most) {
  const T value = values[option].as<T>();
  if (value >= least && value <= most) return value;
  throw Error(fmt::format("generate: --{} {}: accepted: {} to {}", option, value, least, most));
}

SamplingConfig read_sampling(const Values& values) {
  SamplingConfig sampling;
  sampling.temperature = checked(values, "temperature", 0.0, 1000.0);
  sampling.top_k = checked<std::int64_t>(values, "top-k", 0, INT64_MAX);
  sampling.top_p = checked(values, "top-p", 0x1p-20, 1.0);
  sampling.min_new_tokens = checked<std::int64_t>(values, "min-new-tokens", 0, 65536);
  sampling.seed = values["seed"].as<std::uint64_t>();
  if (sampling.temperature == 0.0) {
    refuse_given(values, "generate", {"top-k", "top-p"},
                 "has no effect at --temperature 0, which takes the likeliest token");
  }
  return sampling;
}

Vocabulary find_vocabulary(const Values& values, const ModelSource& source, const RunConfig& run) {
  if (values.count("vocabulary") != 0) {
    const std::string name = values["vocabulary"].as<std::string>();
    return name == "bytes" ? Vocabulary::bytes() : Vocabulary::read(name);
  }
  if (!source.run_config.empty()) {
    return open_sources(last_stage(run).data, run.model.vocab_size, "generate").vocabulary();
  }
  const std::filesystem::path table = source.tokenizer / "token_bytes.json";
  if (is_present(table)) return Vocabulary::read(table);
  return Vocabulary::opaque(run.model.vocab_size, -1, -1, "");
}

/// Prompts of the command line, then those of the file.
class PromptReader {
 public:
  PromptReader(const Vocabulary& vocabulary, std::int64_t vocab_size)
      : vocabulary_(vocabulary), reader_(vocabulary, vocab_size) {}

  void add(const nlohmann::json& value, const std::string& where) {
    std::vector<std::int32_t> tokens = reader_.tokens(value, where);
    if (value.is_string() && vocabulary_.begin() >= 0) {
      tokens.insert(tokens.begin(), vocabulary_.begin());
    }
    prompts_.push_back(std::move(tokens));
  }
  void add_file(const std::filesystem::path& file) {
    std::ifstream stream(file);
    if (!stream) throw Error(fmt::format("{}: cannot be read", file.string()));
    std::string line;
    for (std::int64_t number = 1; std::getline(stream, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string where = fmt::format("{}:{}", file.string(), number);
      const nlohmann::json object = parse_json(line, where);
      if (!object.is_object() || !object.contains("prompt")) {
        throw Error(where + ": no object with a \"prompt\"");
      }
      add(object["prompt"], where + ": \"prompt\"");
    }
  }
  const std::vector<std::vector<std::int32_t>>& prompts() const { return prompts_; }

 private:
  const Vocabulary& vocabulary_;
  TextReader reader_;
  std::vector<std::vector<std::int32_t>> prompts_;
};

std::vector<Prompt> read_prompts(const Values& values, const Vocabulary& vocabulary,
                                 std::int64_t vocab_size) {
  PromptReader reader(vocabulary, vocab_size);
  if (values.count("prompt") != 0) {
    for (const std::string& text : values["prompt"].as<std::vector<std::string>>()) {
      reader.add(text, "generate: --prompt");
    }
  }
  if (values.count("prompts") != 0) reader.add_file(values["prompts"].as<std::string>());
  if (reader.prompts().empty()) throw Error("generate: no prompt (fp8lab generate --help)");
  std::vector<Prompt> prompts;
  const auto samples = checked<std::uint32_t>(values, "samples", 1, 65536);
  for (std::size_t i = 0; i < reader.prompts().size(); ++i) {
    for (std::uint32_t sample = 0; sample < samples; ++sample) {
      prompts.push_back({reader.prompts()[i], static_cast<std::uint32_t>(i), sample});
    }
  }
  return prompts;
}

std::int64_t longest(const std::vector<Prompt>& prompts) {
  std::size_t length = 0;
  for (const Prompt& prompt : prompts) length = std::max(length, prompt.tokens.size());
  return static_cast<std::int64_t>(length);
}

void print(const std::vector<Prompt>& prompts, const std::vector<Completion>& completions,
           const Vocabulary& vocabulary, const Values& values) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Completion& completion = completions[i];
    const std::string text =
        vocabulary.has_text() ? vocabulary.decode(completion.tokens) : std::string();
    if (values.count("json") == 0) {
      fmt::print(
          "--- prompt {} sample {}: {} tokens{}\n{}\n", prompts[i].problem, prompts[i].sample,
          completion.tokens.size(), completion.ended ? ", ended" : "",
          vocabulary.has_text() ? text : fmt::format("{}", fmt::join(completion.tokens, " ")));
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
  const Values values = parse_arguments("generate", generate_options(), arguments, {{"source", 1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  if (values.count("log-probabilities") > values.count("json")) {
    throw Error("generate: --log-probabilities needs --json");
  }
  const ModelSource source = open_model(required(values, "source", "generate"));
  const RunConfig run = model_run(source, values, {});
  const Vocabulary vocabulary = find_vocabulary(values, source, run);
  GenerationConfig config;
  config.sampling = read_sampling(values);
  config.max_new_tokens = checked<std::int64_t>(values, "max-new-tokens", 1, 1 << 20);
  config.end = values.count("end") != 0 ? values["end"].as<std::int32_t>() : vocabulary.end();
  config.log_probabilities = values.count("log-probabilities") != 0;
  const std::vector<Prompt> prompts = read_prompts(values, vocabulary, run.model.vocab_size);
  LoadedModel model(source, run, values);
  const BatchShape& shape = model.transformer().shape();
  const std::int64_t capacity =
      std::min(longest(prompts) + config.max_new_tokens, shape.sequence_length);
  const auto count = static_cast<std::int64_t>(prompts.size());
  const std::int64_t together =
      std::min({checked<std::int64_t>(values, "together", 1, 65536), count, shape.tokens()});
  Generator generator(model.backend(), model.transformer(), together, capacity);
  model.transformer().prepare_weights(model.context());
  PhaseLine phase;
  phase.begin(fmt::format("generating {} completions", prompts.size()));
  const std::vector<Completion> completions = generator.generate(model.context(), prompts, config);
  phase.begin("");
  print(prompts, completions, vocabulary, values);
  return ExitCode::kSuccess;
}

}  // namespace fp8lab::cli
