#include "src/data/text_shards.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/config/config_names.hpp"
#include "src/config/reading/python_package.hpp"
#include "src/data/token_shard.hpp"
#include "src/io/command_output.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/file_lock.hpp"
#include "src/io/files/mapped_file.hpp"
#include "src/io/files/text_lines.hpp"
#include "src/io/hash.hpp"
#include "src/io/json_document.hpp"
#include "src/io/python_interpreter.hpp"

namespace fp8lab {
namespace {

namespace fs = std::filesystem;

/// Another number than that of shards which would be made otherwise today.
constexpr const char* kMaker = "fp8lab-text-shards-2";
constexpr const char* kTokenBytes = "token_bytes.json";
constexpr const char* kManifest = "text.manifest.json";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// What precedes a note of fp8lab.tokens on standard error.
constexpr std::string_view kNote = "fp8lab.tokens: note: ";

/// Runs fp8lab.tokens, which may say something on standard error: that is returned. Throws Error
/// with its line for status 2, RuntimeFailure for any other.
std::string run_tokens(std::vector<std::string> words) {
  words.insert(words.begin(), {python_interpreter(), "-m", "fp8lab.tokens"});
  std::string path = python_package_folder().string();
  if (const std::string before = variable("PYTHONPATH"); !before.empty()) {
    path += (path.empty() ? "" : ":") + before;
  }
  const std::string accepted =
      "python3 or FP8LAB_PYTHON=INTERPRETER with numpy, tokenizers and xxhash";
  CommandOutput output;
  try {
    output = run_command(words, {"PYTHONPATH=" + path, "PYTHONDONTWRITEBYTECODE=1"});
  } catch (const Error& error) {
    ErrorFields fields = fields_of(error);
    fields.accepted = accepted;
    throw InputError(fields);
  }
  if (output.status == 0) return output.error;
  std::string said = output.error.substr(output.error.rfind('\n') + 1);
  constexpr std::string_view kName = "fp8lab.tokens: ";
  if (said.starts_with(kName)) said.erase(0, kName.size());
  if (output.status == 2) throw Error(said);
  throw RuntimeFailure(fmt::format("{} -m fp8lab.tokens ended with status {}: {}; accepted: {}",
                                   words[0], output.status, said.empty() ? "it said nothing" : said,
                                   accepted));
}

/// Owns a folder or file and removes it with its contents.
class TemporaryTree {
 public:
  explicit TemporaryTree(fs::path path) : path_(std::move(path)) {}
  TemporaryTree(const TemporaryTree&) = delete;
  TemporaryTree& operator=(const TemporaryTree&) = delete;
  ~TemporaryTree() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string file_hash(const fs::path& file) {
  const MappedFile mapped(file);
  return hex16(xxh3(mapped.bytes().data(), mapped.bytes().size()));
}

/// Identifies everything besides the text that determines the ids.
std::string tokenizer_key(const fs::path& folder) {
  std::string key = kMaker;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const fs::path file = folder / name;
    key += fmt::format("\n{} {}", name, is_present(file) ? file_hash(file) : "none");
  }
  return key;
}

/// Identifies the present contents of `file`. Throws if it cannot be tokenized.
std::string key_of(const fs::path& file, DataKind kind, const fs::path& folder) {
  if (!is_file(file)) read_file(file);  // reports what is wrong with it
  const std::string how =
      fmt::format("{}\n{}", tokenizer_key(folder), word_for(kDataKindNames, kind));
  return file_hash(file) + "-" + hex16(xxh3(how));
}

/// Returns the shards of a cache folder in order; nothing if one is missing or incomplete.
std::optional<std::vector<fs::path>> whole_shards(const fs::path& folder) {
  if (!is_file(folder / kManifest)) return std::nullopt;
  std::vector<fs::path> shards;
  try {
    const nlohmann::json manifest = read_json_object(folder / kManifest);
    for (const nlohmann::json& shard : manifest.at("shards")) {
      shards.push_back(folder / shard.at("file").get<std::string>());
      const TokenShard whole(shards.back(), {});
      if (hex16(whole.hash()) != shard.at("hash").get<std::string>()) return std::nullopt;
    }
    if (is_file(folder / kTokenBytes)) Vocabulary::read(folder / kTokenBytes);
  } catch (const Error&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  if (shards.empty()) return std::nullopt;
  return shards;
}

/// As fp8lab.tokens takes it.
std::string folder_name(const fs::path& folder) { return folder.empty() ? "." : folder.string(); }

/// The token `id` as text. Throws Error where tokenizer.json has none.
std::string token_named(const fs::path& folder, std::int32_t id) {
  const fs::path file = folder / "tokenizer.json";
  const nlohmann::json document = read_json_object(file);
  try {
    for (const nlohmann::json& token : document.value("added_tokens", nlohmann::json::array())) {
      if (token.at("id") == id) return token.at("content").get<std::string>();
    }
    const nlohmann::json& vocabulary = document.at("model").at("vocab");
    if (vocabulary.is_object()) {
      for (const auto& [token, number] : vocabulary.items()) {
        if (number == id) return token;
      }
    } else if (vocabulary.is_array() && id < static_cast<std::int64_t>(vocabulary.size())) {
      return vocabulary.at(static_cast<std::size_t>(id)).at(0).get<std::string>();
    }
  } catch (const nlohmann::json::exception&) {
    throw InputError({.where = file.string(), .reason = "is no tokenizer"});
  }
  throw InputError({.where = file.string(),
                    .reason = fmt::format("has no token {}, with which documents begin", id)});
}

std::vector<std::string> begin_option(const PromptTokenizer& tokenizer) {
  if (!tokenizer.begin) return {};
  if (*tokenizer.begin < 0) return {"--no-begin"};
  return {"--begin=" + token_named(tokenizer.folder, *tokenizer.begin)};
}

std::vector<std::string> notes_of(const std::string& said) {
  std::vector<std::string> notes;
  TextLines lines(said);
  for (std::string_view line; lines.next(line);) {
    if (line.starts_with(kNote)) notes.emplace_back(line.substr(kNote.size()));
  }
  return notes;
}

/// A line about line N of `file`, about prompt N instead.
std::string named_as_given(const std::string& line, const fs::path& file,
                           const std::vector<GivenPrompt>& prompts) {
  const std::string name = file.string() + ":";
  if (!line.starts_with(name)) return line;
  std::size_t number = 0;
  const char* const last = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + name.size(), last, number);
  if (error != std::errc{} || number < 1 || number > prompts.size()) return line;
  return prompts[number - 1].where + std::string(rest, last);
}

FileLock wait_for(const fs::path& path) {
  for (;;) {
    if (std::optional<FileLock> lock = FileLock::try_acquire(path)) return std::move(*lock);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// Ensures that the cache contains the complete folder `name`, as checked by `is_whole`. `make`
/// writes it into a new folder, which is then renamed. If a process is killed meanwhile, the
/// next one removes its folder.
void keep(const fs::path& name, const std::function<bool()>& is_whole,
          const std::function<void(const fs::path&)>& make) {
  if (is_whole()) return;
  make_directories(name.parent_path());
  const FileLock lock = wait_for(name);
  if (is_whole()) return;
  for (const fs::path& left : temporaries(name)) const TemporaryTree removed(left);
  const TemporaryTree made(temporary_beside(name));
  make(made.path());
  const TemporaryTree damaged(temporary_beside(name));
  std::error_code error;
  if (is_present(name)) fs::rename(name, damaged.path(), error);
  if (!error) fs::rename(made.path(), name, error);
  if (error) throw RuntimeFailure(fmt::format("{}: {}", name.string(), error.message()));
}

}  // namespace

fs::path cache_folder() {
  if (const std::string own = variable("FP8LAB_CACHE"); !own.empty()) return own;
  // The XDG base directory specification requires relative paths to be ignored.
  if (const fs::path base = variable("XDG_CACHE_HOME"); base.is_absolute()) return base / "fp8lab";
  if (const std::string home = variable("HOME"); !home.empty()) {
    return fs::path(home) / ".cache/fp8lab";
  }
  throw InputError({.where = "no place for token shards",
                    .reason = "HOME is not set",
                    .accepted = "FP8LAB_CACHE=FOLDER"});
}

std::vector<fs::path> text_shards(const fs::path& file, DataKind kind, const fs::path& folder) {
  const std::string key = key_of(file, kind, folder);
  const fs::path name = cache_folder() / "shards" / key;
  std::optional<std::vector<fs::path>> shards;
  const auto is_whole = [&] {
    shards = whole_shards(name);
    return shards.has_value();
  };
  keep(name, is_whole, [&](const fs::path& out) {
    run_tokens({fs::absolute(file).string(), "--tokenizer", folder_name(folder), "--out",
                out.string(), "--name", "text", "--format",
                kind == DataKind::text ? "text" : "jsonl"});
    if (key_of(file, kind, folder) != key) {
      throw InputError(
          {.where = file.string(),
           .reason = fmt::format("it, or the tokenizer in {}, changed while it was read",
                                 folder.string())});
    }
  });
  if (!shards && !is_whole()) {
    throw RuntimeFailure(fmt::format("{}: is not what was written there", name.string()));
  }
  return *shards;
}

PromptIds prompt_ids(const std::vector<GivenPrompt>& prompts, const PromptTokenizer& tokenizer) {
  const fs::path cache = cache_folder();
  make_directories(cache);
  const TemporaryTree work(temporary_beside(cache / "prompts"));
  make_directories(work.path());
  std::string lines;
  for (const GivenPrompt& prompt : prompts) {
    try {
      lines += prompt.record.dump() + "\n";
    } catch (const nlohmann::json::exception&) {
      throw Error(prompt.where + " is not UTF-8");
    }
  }
  const fs::path file = work.path() / "prompts.jsonl", out = work.path() / "ids";
  write_file_atomically(file, lines);
  std::vector<std::string> words = {file.string(), "--questions",
                                    "--tokenizer", folder_name(tokenizer.folder),
                                    "--out",       out.string()};
  for (std::string& word : begin_option(tokenizer)) words.push_back(std::move(word));
  PromptIds read;
  try {
    read.notes = notes_of(run_tokens(words));
  } catch (const Error& error) {
    ErrorFields fields = fields_of(error);
    fields.reason = named_as_given(fields.reason, file, prompts);
    throw InputError(fields);
  }
  for (std::string& note : read.notes) note = named_as_given(note, file, prompts);
  const std::string written = read_file(out / "prompts.jsonl");
  std::vector<std::vector<std::int32_t>>& ids = read.ids;
  std::size_t begin = 0;
  while (begin < written.size()) {
    const std::size_t end = std::min(written.find('\n', begin), written.size());
    const std::string line = written.substr(begin, end - begin);
    const nlohmann::json object = parse_json(line, (out / "prompts.jsonl").string());
    ids.push_back(object.at("prompt").get<std::vector<std::int32_t>>());
    begin = end + 1;
  }
  if (ids.size() != prompts.size()) throw RuntimeFailure("fp8lab.tokens has lost a prompt");
  return read;
}

Vocabulary folder_vocabulary(const fs::path& folder, std::int64_t size) {
  const fs::path own = folder / kTokenBytes;
  if (is_present(own)) return Vocabulary::read(own);
  const fs::path name = cache_folder() / "vocabularies" / hex16(xxh3(tokenizer_key(folder)));
  std::optional<Vocabulary> vocabulary;
  const auto is_whole = [&] {
    try {
      if (is_file(name / kTokenBytes)) vocabulary = Vocabulary::read(name / kTokenBytes);
      return is_file(name / "none.jsonl");
    } catch (const Error&) {
      return false;
    }
  };
  keep(name, is_whole, [&](const fs::path& out) {
    const TemporaryTree work(temporary_beside(name.parent_path() / "questions"));
    make_directories(work.path());
    write_file_atomically(work.path() / "none.jsonl", "");
    run_tokens({(work.path() / "none.jsonl").string(), "--questions", "--tokenizer",
                folder_name(folder), "--out", out.string()});
  });
  if (!vocabulary) is_whole();
  return vocabulary ? *vocabulary : Vocabulary::opaque(size, -1, -1, "");
}

}  // namespace fp8lab
