#include "src/cli/generation_options.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "emulation/base/error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/loaded_model.hpp"
#include "src/data/mixture.hpp"
#include "src/data/prompt_text.hpp"
#include "src/data/text_shards.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/file_kind.hpp"
#include "src/io/json_document.hpp"
#include "src/io/text_lines.hpp"

namespace fp8lab::cli {
namespace {

/// Prompts as given: JSON strings or lists of ids, and the location of each.
struct GivenPrompts {
  std::vector<nlohmann::json> values;
  std::vector<std::string> places;

  void add(nlohmann::json value, std::string where) {
    values.push_back(std::move(value));
    places.push_back(std::move(where));
  }
  void add_file(const std::filesystem::path& file) {
    const std::string text = read_file(file);
    TextLines lines(text);
    for (std::string_view line; lines.next(line);) {
      if (is_blank(line)) continue;
      const std::string where = fmt::format("{}:{}", file.string(), lines.number());
      nlohmann::json object = parse_json(line, where);
      if (!object.is_object() || !object.contains("prompt")) {
        throw Error(where + ": no object with a \"prompt\"");
      }
      add(std::move(object["prompt"]), where + ": \"prompt\"");
    }
  }
};

/// Encodes all texts with the tokenizer in `folder`.
void encode_texts(const std::filesystem::path& folder, GivenPrompts& prompts) {
  std::vector<std::string> texts;
  for (const nlohmann::json& value : prompts.values) {
    if (value.is_string()) texts.push_back(value.get<std::string>());
  }
  if (texts.empty()) return;
  const std::vector<std::vector<std::int32_t>> ids = text_ids(texts, folder);
  std::size_t next = 0;
  for (nlohmann::json& value : prompts.values) {
    if (!value.is_string()) continue;
    const std::vector<std::int32_t>& own = ids[next++];
    value = std::vector<std::uint32_t>(own.begin(), own.end());
  }
}

/// Returns the token ids of the prompts; remaining texts are encoded as bytes.
std::vector<std::vector<std::int32_t>> tokens_of(const GivenPrompts& prompts,
                                                 const Vocabulary& vocabulary,
                                                 std::int64_t vocab_size) {
  const TextReader reader(vocabulary, vocab_size);
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::size_t i = 0; i < prompts.values.size(); ++i) {
    const nlohmann::json& value = prompts.values[i];
    tokens.push_back(reader.tokens(value, prompts.places[i]));
    if (value.is_string() && vocabulary.begin() >= 0) {
      tokens.back().insert(tokens.back().begin(), vocabulary.begin());
    }
  }
  return tokens;
}

}  // namespace

void add_prompt_options(Options& options) {
  options.add("prompt", value<std::vector<std::string>>(), "a prompt in text, repeatable");
  options.add("prompts", value<std::string>(),
              "JSON-lines file of {\"prompt\": TEXT or [ID, ...]}");
  options.add("vocabulary", value<std::string>(),
              "vocabulary of the text: \"bytes\", or a token_bytes.json (default: that of the "
              "run's data or "
              "of the folder)");
  options.add("end", value<std::int32_t>(),
              "token that ends a completion (default: the vocabulary's)");
}

void add_sampling_options(Options& options, double temperature,
                          const std::string& about_temperature) {
  options.add("min-new-tokens", value<std::int64_t>(0), "shortest completion in tokens");
  options.add("temperature", value<double>(temperature), about_temperature);
  options.add("top-k", value<std::int64_t>(0), "sample from the K likeliest tokens; 0: from all");
  options.add("top-p", value<double>(1.0),
              "sample from the likeliest tokens whose probabilities sum to P");
  options.add("seed", value<std::uint64_t>(1), "random seed of sampling");
}

SamplingConfig read_sampling(const Values& values, const std::string& command) {
  SamplingConfig sampling;
  sampling.temperature = checked_value(values, command, "temperature", 0.0, 1000.0);
  sampling.top_k = checked_value<std::int64_t>(values, command, "top-k", 0, INT64_MAX);
  sampling.top_p = checked_value(values, command, "top-p", 0x1p-20, 1.0);
  sampling.min_new_tokens =
      checked_value<std::int64_t>(values, command, "min-new-tokens", 0, 65536);
  sampling.seed = values["seed"].as<std::uint64_t>();
  if (sampling.temperature == 0.0) {
    refuse_given(values, command, {"top-k", "top-p"},
                 "has no effect at --temperature 0, which takes the likeliest token");
  }
  return sampling;
}

Vocabulary find_vocabulary(const Values& values, const ModelSource& source, const RunConfig& run,
                           const std::string& command) {
  if (values.count("vocabulary") != 0) {
    const std::string name = values["vocabulary"].as<std::string>();
    Vocabulary vocabulary = name == "bytes" ? Vocabulary::bytes() : Vocabulary::read(name);
    const std::string& known = source.vocabulary.tokenizer;
    if (!known.empty() && known != vocabulary.tokenizer()) {
      throw Error(
          fmt::format("{}: --vocabulary {}: is of {}, the weights of {} are of the "
                      "tokenizer {}; accepted: its own, or prompts of token ids, which "
                      "python3 -m fp8lab.tokens --questions writes",
                      command, name, vocabulary.tokenizer(), source.name, known));
    }
    check_vocabulary(vocabulary, source.vocabulary, command + ": --vocabulary", name);
    return vocabulary;
  }
  if (source.vocabulary.tokenizer == "bytes") return Vocabulary::bytes();
  if (source.run) {
    return open_sources(source.places.training_data(last_stage(run)), source.vocabulary, command)
        .vocabulary();
  }
  const std::filesystem::path table = source.tokenizer / "token_bytes.json";
  if (is_present(table)) {
    Vocabulary vocabulary = Vocabulary::read(table);
    check_vocabulary(vocabulary, source.vocabulary, command, table.string());
    return vocabulary;
  }
  const Vocabulary opaque = Vocabulary::opaque(run.model.vocab_size, -1, -1, "");
  if (source.vocabulary.folder.empty()) return opaque;
  try {
    return folder_vocabulary(source.vocabulary.folder, run.model.vocab_size);
  } catch (const std::exception& error) {
    // If there are texts to encode, that step reports the same error.
    if (values.count("prompt") == 0) {
      print_notes({fmt::format("ids are not spelled out: {}", error.what())});
    }
    return opaque;
  }
}

std::int32_t end_token(const Values& values, const std::string& command,
                       const Vocabulary& vocabulary, std::int64_t vocab_size) {
  if (values.count("end") == 0) return vocabulary.end();
  return checked_value<std::int32_t>(values, command, "end", 0,
                                     static_cast<std::int32_t>(vocab_size - 1));
}

void check_shortest(const SamplingConfig& sampling, const std::string& command, std::int64_t most,
                    const std::string& option) {
  if (sampling.min_new_tokens <= most) return;
  throw Error(fmt::format("{}: --min-new-tokens {} is more than --{} {}", command,
                          sampling.min_new_tokens, option, most));
}

std::vector<std::vector<std::int32_t>> read_prompts(const Values& values, const ModelSource& source,
                                                    const std::string& command,
                                                    const Vocabulary& vocabulary,
                                                    std::int64_t vocab_size) {
  GivenPrompts prompts;
  if (values.count("prompt") != 0) {
    for (const std::string& text : values["prompt"].as<std::vector<std::string>>()) {
      prompts.add(text, command + ": --prompt");
    }
  }
  if (values.count("prompts") != 0) prompts.add_file(values["prompts"].as<std::string>());
  if (prompts.values.empty()) {
    throw Error(fmt::format("{}: no prompt (fp8lab {} --help)", command, command));
  }
  const std::filesystem::path folder = source.vocabulary.tokenizer_folder();
  if (!folder.empty()) encode_texts(folder, prompts);
  return tokens_of(prompts, vocabulary, vocab_size);
}

}  // namespace fp8lab::cli
