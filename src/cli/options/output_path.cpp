#include "src/cli/options/output_path.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/files/files_read.hpp"

namespace fp8lab::cli {
namespace {

namespace fs = std::filesystem;

/// `what` is "COMMAND: --OPTION", or words for a path that no option names.
[[noreturn]] void refuse(const std::string& what, const std::string& path, ErrorFields fields) {
  const std::size_t colon = what.find(": --");
  fields.found = quoted_word(path);
  if (colon == std::string::npos) {
    fields.where = what + " " + std::exchange(fields.found, {});
  } else {
    fields.where = what.substr(0, colon);
    fields.key = what.substr(colon + 2);
    if (!fields.reason.empty()) fields.reason.insert(0, ": ");
  }
  throw InputError(std::move(fields));
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void require_writable(const fs::path& folder, const std::string& path, const std::string& what) {
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  refuse(what, path, {.reason = fmt::format("{} may not be written", folder.string())});
}

/// Tests whether the folders from `there` to `path` can be created, in a temporary folder that is
/// removed again: some writable file systems refuse new folders. Returns the reason for a
/// failure, or an empty text.
std::string why_not_made(const fs::path& path, const fs::path& there) {
  std::string trial = (there / ".fp8lab-XXXXXX").string();
  if (::mkdtemp(trial.data()) == nullptr) {
    return fmt::format("{}: {}", there.string(), std::generic_category().message(errno));
  }
  std::error_code failed, ignored;
  const fs::path missing = path == there ? fs::path() : path.lexically_relative(there);
  const bool leads_out = std::find(missing.begin(), missing.end(), "..") != missing.end();
  fs::create_directories(trial / (leads_out ? path.filename() : missing), failed);
  fs::remove_all(trial, ignored);
  return failed ? failed.message() : std::string();
}

/// Compares through links, and also if no file exists yet.
bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  if (fs::equivalent(a, b, missing)) return true;
  return fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
}

/// Returns true for JSON files that no --json writes: those of models, tokenizers and token shards.
bool belongs_to_folder(const std::string& name) {
  constexpr std::array kNames = {"config.json",
                                 "generation_config.json",
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "vocab.json",
                                 "chat_template.json",
                                 "token_bytes.json"};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  return name.ends_with(".safetensors.index.json") || name.ends_with(".manifest.json");
}

/// Throws Error for a file with contents other than those that the result may replace. Does not use
/// open_regular_file, since the file is not an input.
void require_replaceable(const std::string& path, const std::string& what, Replaces replaces) {
  std::string first(6, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(first.data(), static_cast<std::streamsize>(first.size()));
  first.resize(static_cast<std::size_t>(file.gcount()));
  if (first.empty() && file.eof()) return;
  if (replaces == Replaces::nothing) {
    refuse(what, path, {.reason = "is there", .accepted = "the name of a new file"});
  }
  const bool npy = replaces == Replaces::npy;
  if (!npy && belongs_to_folder(fs::path(path).filename().string())) {
    refuse(
        what, path,
        {.reason = "is a file of a model, a tokenizer or token shards", .accepted = "another one"});
  }
  if (npy ? first == "\x93NUMPY" : first.starts_with("{\n") || first.starts_with("[\n")) return;
  refuse(what, path,
         {.reason =
              fmt::format("is there and holds no {}", npy ? "matrix of NumPy" : "result in JSON"),
          .accepted = "a new name, or a result to be replaced"});
}

}  // namespace

fs::path output_file(const std::string& path, const std::string& what, Replaces replaces) {
  if (path.empty()) refuse(what, path, {.accepted = "the name of a file"});
  if (is_folder(path)) refuse(what, path, {.reason = "is a folder", .accepted = "a file"});
  if (is_present(path) && !is_file(path)) {
    refuse(what, path, {.reason = "is no regular file, which a result would replace"});
  }
  if (is_file(path)) require_replaceable(path, what, replaces);
  const fs::path folder = folder_of(path);
  if (!is_folder(folder)) {
    refuse(what, path, {.reason = fmt::format("there is no folder {}", folder.string())});
  }
  require_writable(folder, path, what);
  return path;
}

fs::path output_folder(const std::string& path, const std::string& what) {
  if (path.empty()) refuse(what, path, {.accepted = "the name of a folder"});
  // The longest existing part of the path.
  fs::path there = path;
  while (!is_present(there) && there != folder_of(there)) {
    std::error_code ignored;
    if (fs::is_symlink(fs::symlink_status(there, ignored))) {
      refuse(what, path,
             {.reason = fmt::format("{} is a link that leads nowhere", there.string())});
    }
    there = folder_of(there);
  }
  if (!is_folder(there)) {
    const bool itself = there == fs::path(path);
    refuse(what, path,
           itself ? ErrorFields{.reason = "is a file", .accepted = "a folder, there or to be made"}
                  : ErrorFields{.reason = fmt::format("{} is a file", there.string()),
                                .accepted = "folders on the way"});
  }
  require_writable(there, path, what);
  if (const std::string why = why_not_made(path, there); !why.empty())
    refuse(what, path, {.reason = why});
  return path;
}

std::vector<NamedFile> named_files(const Values& values,
                                   std::initializer_list<const char*> options) {
  std::vector<NamedFile> files;
  for (const char* option : options) {
    if (values.count(option) == 0) continue;
    files.push_back({fmt::format("--{}", option), values[option].as<std::string>()});
  }
  return files;
}

void check_output_files(const Values& values, const std::string& command,
                        std::initializer_list<const char*> options, Replaces replaces) {
  for (const NamedFile& file : named_files(values, options)) {
    output_file(file.path.string(), fmt::format("{}: {}", command, file.what), replaces);
  }
}

void check_files_apart(const std::string& command, const std::vector<NamedFile>& outputs,
                       const std::vector<NamedFile>& inputs) {
  std::vector<NamedFile> taken = inputs;
  for (const NamedFile& output : outputs) {
    for (const NamedFile& other : taken) {
      if (!is_same_file(output.path, other.path)) continue;
      refuse(
          fmt::format("{}: {}", command, output.what), output.path.string(),
          {.reason = fmt::format("is the file of {} too", other.what), .accepted = "another one"});
    }
    taken.push_back(output);
  }
}

void require_unread(const fs::path& path, const std::string& what) {
  const std::optional<std::string> read = name_of_read_file(path);
  if (!read) return;
  refuse(what, path.string(),
         {.reason = fmt::format("is a file that this command reads{}",
                                *read == path.string() ? "" : ", " + *read),
          .accepted = "another one"});
}

void require_unread(const Values& values, const std::string& command,
                    std::initializer_list<const char*> options) {
  for (const NamedFile& file : named_files(values, options)) {
    require_unread(file.path, fmt::format("{}: {}", command, file.what));
  }
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  require_unread(path, "--json");
  write_file_atomically(path, json_text(json) + "\n");
}

}  // namespace fp8lab::cli
