#include "src/cli/inputs/evaluation_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "emulation/base/error.hpp"
#include "src/config/reading/toml_text.hpp"
#include "src/data/json_records.hpp"
#include "src/data/token_shard.hpp"
#include "src/io/files/input_file.hpp"
#include "src/io/files/text_lines.hpp"

namespace fp8lab::cli {

namespace {

namespace fs = std::filesystem;

/// Returns the form of the first document. If it cannot be read, returns prompt_response; the code
/// that opens the data then reports the reason.
bool is_running_text_file(const fs::path& path, const std::string& kind) {
  if (kind == "text") return true;
  try {
    if (kind == "tokens") return !has_loss_mask(shard_files(path).front());
    const InputFile file(path);
    constexpr std::uint64_t kMost = 1 << 20;  // limit in bytes for the end of the first record
    std::string begin(std::min(file.size(), kMost), '\0');
    file.read(0, std::as_writable_bytes(std::span(begin)));
    TextLines lines(begin);
    for (std::string_view line; lines.next(line);) {
      line = without_byte_order_mark(line);
      if (!is_blank(line)) return is_running_text(line);
    }
  } catch (const Error&) {
  }
  return false;
}

}  // namespace

std::string data_table_of(const std::vector<std::string>& paths) {
  const fs::path first = paths.front();
  const std::string kind = first.extension() == ".jsonl" ? "jsonl"
                           : first.extension() == ".txt" ? "text"
                                                         : "tokens";
  std::vector<std::string> quoted;
  for (const std::string& path : paths) quoted.push_back(toml_quoted(path));
  const char* form = is_running_text_file(first, kind) ? ", form = \"running_text\"" : "";
  return fmt::format("{{kind = \"{}\", path = [{}]{}}}", kind, fmt::join(quoted, ", "), form);
}

void add_data(const Values& values, const std::string& stage, OptionAssignments& assignments) {
  const std::string key = "stages." + stage + ".eval.data";
  const std::vector<std::string> paths = words_of(values, "data");
  assignments.add("data", key, paths.empty() ? std::string() : data_table_of(paths));
  assignments.add("form", key + ".form");
  assignments.reword("data.form = \"prompt_response\"", "--form prompt_response");
  assignments.reword("kind = \"jsonl\"", "--data of .jsonl files");
}

std::vector<std::string> document_notes(const Values& values, const DataConfig& config,
                                        const DataSources& data) {
  std::vector<std::string> notes;
  for (std::size_t i = 0; i < config.sources.size() && values.count("data") != 0; ++i) {
    const SourceConfig& source = config.sources[i];
    const std::int64_t documents = data.corpora[i]->size();
    if (source.kind != DataKind::text || documents < 2) continue;
    const bool is_one = source.paths.size() == 1;
    notes.push_back(fmt::format(
        "{} {} documents, which blank lines separate: each is read alone, in shuffled order, "
        "and the token that ends it is a target; one document is a line {{\"text\": \"...\"}} of a "
        ".jsonl file",
        is_one ? source.paths.front().filename().string() + " holds"
               : fmt::format("{} files hold", source.paths.size()),
        documents));
  }
  return notes;
}

}  // namespace fp8lab::cli
