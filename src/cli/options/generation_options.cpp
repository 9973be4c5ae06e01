#include "src/cli/options/generation_options.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/inputs/loaded_model.hpp"
#include "src/config/reading/hugging_face.hpp"
#include "src/data/json_records.hpp"
#include "src/data/mixture.hpp"
#include "src/data/prompt_text.hpp"
#include "src/data/text_shards.hpp"
#include "src/data/tokenizer.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/text_lines.hpp"
#include "src/io/json_document.hpp"
#include "src/io/shell_word.hpp"

namespace fp8lab::cli {
namespace {

/// A prompt as it was given: a JSON string, a list of ids, or an object with messages.
struct Given {
  nlohmann::json value;
  std::string where;
};

/// null counts as an absent key.
bool has(const nlohmann::json& record, const char* key) {
  return record.contains(key) && !record[key].is_null();
}

bool is_chat(const nlohmann::json& record) {
  return has(record, "messages") || has(record, "conversations");
}

void add_file(const std::filesystem::path& file, std::vector<Given>& prompts) {
  const std::string text = read_file(file);
  TextLines lines(text);
  for (std::string_view line; lines.next(line);) {
    if (is_blank(line)) continue;
    const std::string where = fmt::format("{}:{}", file.string(), lines.number());
    nlohmann::json record = parse_json(line, where);
    const bool has_prompt = record.is_object() && has(record, "prompt");
    if (!record.is_object() || has_prompt == is_chat(record)) {
      throw InputError({.where = where,
                        .accepted = "an object with \"prompt\" or \"messages\", one of the two"});
    }
    if (has_prompt && record["prompt"].is_object()) {
      throw InputError({.where = where,
                        .reason = "\"prompt\" is an object",
                        .accepted = "a string or a list of token ids"});
    }
    if (has_prompt) {
      prompts.push_back({std::move(record["prompt"]), where + ": \"prompt\""});
    } else {
      prompts.push_back({std::move(record), where});
    }
  }
}

std::vector<Given> given_prompts(const Values& values, const std::string& command) {
  std::vector<Given> prompts;
  for (const std::string& text : words_of(values, "prompt")) {
    prompts.push_back({text, command + ": --prompt"});
  }
  for (const std::string& text : words_of(values, "chat")) {
    const nlohmann::json message = {{"role", "user"}, {"content", text}};
    prompts.push_back({{{"messages", nlohmann::json::array({message})}}, command + ": --chat"});
  }
  if (values.count("prompts") == 0) return prompts;
  const std::size_t before = prompts.size();
  const auto file = values["prompts"].as<std::string>();
  add_file(file, prompts);
  if (prompts.size() == before) {
    throw InputError({.where = file,
                      .reason = "holds no prompt",
                      .accepted = "lines of {\"prompt\": TEXT} or {\"messages\": [...]}"});
  }
  return prompts;
}

/// Texts and messages become ids of the tokenizer, all at once.
void encode(const PromptTokenizer& tokenizer, std::vector<Given>& prompts) {
  std::vector<GivenPrompt> texts;
  for (const Given& prompt : prompts) {
    if (prompt.value.is_string()) texts.push_back({{{"prompt", prompt.value}}, prompt.where});
    if (prompt.value.is_object()) texts.push_back({prompt.value, prompt.where});
  }
  if (texts.empty()) return;
  const PromptIds read = prompt_ids(texts, tokenizer);
  print_notes(read.notes);
  std::size_t next = 0;
  for (Given& prompt : prompts) {
    if (!prompt.value.is_string() && !prompt.value.is_object()) continue;
    const std::vector<std::int32_t>& own = read.ids[next++];
    prompt.value = std::vector<std::uint32_t>(own.begin(), own.end());
  }
}

/// What bytes spell out where a tokenizer would recognise a special token: "<|name|>", or nothing.
std::string special_spelling(const std::string& text) {
  constexpr std::size_t kLongest = 44;
  for (std::size_t first = 0; (first = text.find("<|", first)) != std::string::npos; ++first) {
    const std::size_t last = text.find("|>", first + 2);
    if (last == std::string::npos) break;
    const std::string name = text.substr(first, last + 2 - first);
    if (name.size() > 4 && name.size() <= kLongest &&
        name.find_first_of(" \t\r\n") == std::string::npos) {
      return name;
    }
  }
  return {};
}

/// Texts and chats as byte-level data write them.
void encode_bytes(const Vocabulary& vocabulary, std::vector<Given>& prompts) {
  std::vector<std::string> notes;
  for (Given& prompt : prompts) {
    if (prompt.value.is_object()) prompt.value = chat_question(prompt.value, prompt.where);
    if (!prompt.value.is_string()) continue;
    const auto& text = prompt.value.get_ref<const std::string&>();
    const std::string name = special_spelling(text);
    if (!name.empty()) {
      notes.push_back(fmt::format(
          "{}: '{}' reads like a special token, of which bytes have none: it is spelled out",
          prompt.where, name));
    }
    std::vector<std::int32_t> ids = ByteTokenizer::encode(text);
    ids.insert(ids.begin(), vocabulary.begin());
    prompt.value = std::vector<std::uint32_t>(ids.begin(), ids.end());
  }
  print_notes(notes);
}

bool is_tokenizer(const std::filesystem::path& folder, const std::string& hash) {
  return is_file(folder / "tokenizer.json") && folder_tokenizer(folder) == hash;
}

/// The tokenizer of the weights, in the folder that is known to hold it. Nothing where there is
/// none.
std::optional<PromptTokenizer> find_tokenizer(const ModelSource& source,
                                              const Vocabulary& vocabulary) {
  const std::string& known = source.vocabulary.tokenizer;
  const std::filesystem::path own = source.vocabulary.tokenizer_folder();
  if (own.empty() || (source.run && !is_tokenizer(own, known))) return std::nullopt;
  // Documents of a run begin as its data say, whatever the folder says of others.
  std::optional<std::int32_t> begin;
  if (source.run && vocabulary.tokenizer() == known) begin = vocabulary.begin();
  return PromptTokenizer{own, begin};
}

/// What to do where nothing makes ids of text.
std::string without_tokenizer(const ModelSource& source) {
  const std::string& known = source.vocabulary.tokenizer;
  const char* const ids = "token ids by --prompts (python3 -m fp8lab.tokens --questions)";
  if (!source.run || known.empty()) {
    return fmt::format("is text, and no tokenizer.json of {} is known; accepted: {}", source.name,
                       ids);
  }
  return fmt::format(
      "is text, and the tokenizer.json ({}) that the data of {} were made with is not beside them; "
      "accepted: its folder with --look-in, what `fp8lab export {} DIR --tokenizer FOLDER` writes, "
      "or {}",
      known, source.name, shell_path(source.name), ids);
}

/// The vocabulary of a run: that of its data, or where these are gone, of its tokenizer.json.
Vocabulary run_vocabulary(const ModelSource& source, const RunConfig& run,
                          const std::string& command) {
  DataConfig data;
  try {
    data = source.places.training_data(last_stage(run));
  } catch (const Error& missing) {
    const std::filesystem::path folder = source.vocabulary.tokenizer_folder();
    if (!folder.empty() && is_tokenizer(folder, source.vocabulary.tokenizer)) {
      return folder_vocabulary(folder, run.model.vocab_size);
    }
    if (source.vocabulary.tokenizer.empty()) throw;
    ErrorFields fields = fields_of(missing);
    fields.remedy +=
        fmt::format("{}a folder with its tokenizer.json ({})",
                    fields.remedy.empty() ? "give " : ", or ", source.vocabulary.tokenizer);
    throw InputError(fields);
  }
  return open_sources(data, source.vocabulary, command).vocabulary();
}

}  // namespace

void add_prompt_options(Options& options) {
  options.add("prompt", value<std::vector<std::string>>(),
              "a prompt in text, in which special tokens are recognised; repeatable");
  options.add("chat", value<std::vector<std::string>>(),
              "a user's message, asked by the chat template of the tokenizer; repeatable");
  options.add("prompts", value<std::string>(),
              "JSON-lines file of {\"prompt\": TEXT or [ID, ...]} and {\"messages\": [...]}");
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
      throw InputError(
          {.where = command,
           .key = "--vocabulary",
           .found = name,
           .reason = fmt::format(": is of {}, the weights of {} are of the tokenizer {}",
                                 vocabulary.tokenizer(), source.name, known),
           .accepted = "its own, or prompts of token ids, which python3 -m fp8lab.tokens "
                       "--questions writes"});
    }
    check_vocabulary(vocabulary, source.vocabulary, command + ": --vocabulary", name);
    return vocabulary;
  }
  if (source.vocabulary.tokenizer == "bytes") return Vocabulary::bytes();
  if (source.run) {
    return run_vocabulary(source, run, command);
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
    // Where there are texts to encode, that fails for the same reason.
    if (values.count("prompt") + values.count("chat") == 0) {
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

void check_shortest(const SamplingConfig& sampling, const std::string& command, std::int64_t most) {
  if (sampling.min_new_tokens <= most) return;
  throw InputError({.where = command,
                    .key = "--min-new-tokens",
                    .found = fmt::to_string(sampling.min_new_tokens),
                    .reason = fmt::format("is more than --max-new-tokens {}", most)});
}

std::vector<std::vector<std::int32_t>> read_prompts(const Values& values, const ModelSource& source,
                                                    const RunConfig& run,
                                                    const std::string& command,
                                                    const Vocabulary& vocabulary) {
  std::vector<Given> prompts = given_prompts(values, command);
  if (prompts.empty()) {
    throw InputError(
        {.where = command, .reason = fmt::format("no prompt (fp8lab {} --help)", command)});
  }
  if (vocabulary.tokenizer() == "bytes") {
    encode_bytes(vocabulary, prompts);
  } else if (const auto tokenizer = find_tokenizer(source, vocabulary)) {
    encode(*tokenizer, prompts);
  }
  const TextReader reader(vocabulary, run.model.vocab_size);
  std::vector<std::vector<std::int32_t>> tokens;
  for (const Given& prompt : prompts) {
    if (prompt.value.is_string() || prompt.value.is_object()) {
      throw Error(fmt::format("{} {}", prompt.where, without_tokenizer(source)));
    }
    tokens.push_back(reader.tokens(prompt.value, prompt.where));
    if (tokens.back().empty()) throw Error(prompt.where + " is empty");
  }
  return tokens;
}

}  // namespace fp8lab::cli
