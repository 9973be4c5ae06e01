// fp8lab data: describes the contents of token files.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "emulation/base/input_error.hpp"
#include "src/cli/command.hpp"
#include "src/cli/options/output_path.hpp"
#include "src/config/reading/document_kind.hpp"
#include "src/data/token_shard.hpp"
#include "src/data/vocabulary.hpp"
#include "src/io/files/file_kind.hpp"
#include "src/io/hash.hpp"
#include "src/io/printable.hpp"

namespace fp8lab::cli {
namespace {

using nlohmann::ordered_json;

Options data_options() {
  Options options("fp8lab data inspect PATH...");
  options.add("action", value<std::string>(), "inspect");
  options.add("path", value<std::vector<std::string>>(), "token files, or folders of them");
  options.add("document-begin", value<std::int64_t>(-1),
              "token that starts a document, in files without boundaries");
  options.add("document-end", value<std::int64_t>(-1),
              "token that ends a document, in files without boundaries");
  options.add(
      "document", value<std::int64_t>(),
      "number of a document, from 0 on: print it from every file, with its token ids (those that "
      "are not trained on in brackets) and its text with special tokens");
  options.add("json", "machine-readable");
  return options;
}

ordered_json describe(const TokenShard& shard) {
  const ShardLayout& layout = shard.layout();
  ordered_json facts = {{"path", shard.name()},
                        {"format", name_of(layout.format)},
                        {"tokens", layout.token_count},
                        {"bits", 8 * layout.token_bytes},
                        {"documents", shard.documents()},
                        {"vocabulary", shard.vocabulary()},
                        {"trained_tokens", shard.trained_tokens()},
                        {"loss_mask", !layout.loss_mask.empty()},
                        {"hash", hex16(shard.hash())}};
  if (layout.vocabulary == 0) facts["vocabulary_stated"] = false;
  if (layout.begin >= 0) facts["begin"] = layout.begin;
  if (layout.end >= 0) facts["end"] = layout.end;
  if (layout.tokenizer_hash != 0) facts["tokenizer"] = hex16(layout.tokenizer_hash);
  return facts;
}

constexpr std::size_t kColumns = 96;

/// Returns true for parts of a document that are printed on lines of their own.
bool is_of_document(const std::string& key) {
  return key == "ids" || key == "trained" || key == "text";
}

/// Returns the ids, with those that are not trained on in brackets.
std::string ids_of(const ordered_json& facts) {
  const auto trained = facts["trained"].get<std::string>();
  std::string text;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    const auto id = facts["ids"][i].get<std::int64_t>();
    text += trained[i] == '1' ? fmt::format("{} ", id) : fmt::format("[{}] ", id);
  }
  if (!text.empty()) text.pop_back();
  return text;
}

std::string lines_of(const ordered_json& facts) {
  std::string text;
  for (const auto& [key, value] : facts.items()) {
    if (is_of_document(key)) continue;
    if (key == "path") {
      text += printable(value.get<std::string>()) + ":";
    } else {
      text +=
          fmt::format(" {} {}", key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  text += "\n";
  if (!facts.contains("ids")) return text;
  const auto trained = facts["trained"].get<std::string>();
  const bool masks = trained.find('0', 1) != std::string::npos;
  text += masks ? "  ids, in brackets those that are not trained on\n"
                : "  ids; all but the first, which nothing predicts, are trained on\n";
  for (std::string& line : wrapped_lines(ids_of(facts), kColumns)) {
    if (line.ends_with(' ')) line.pop_back();
    text += "  " + line + "\n";
  }
  if (!facts.contains("text")) return text;
  for (const std::string& line : wrapped_lines(facts["text"].get<std::string>(), kColumns)) {
    text += "  | " + line + "\n";
  }
  return text;
}

/// Adds the ids, which of them are trained on, and the text if a token table lies beside the shard.
void add_document(ordered_json& facts, const TokenShard& shard, std::int64_t index) {
  if (index < 0 || index >= shard.documents()) {
    throw InputError({.where = shard.name(),
                      .reason = fmt::format("no document {}", index),
                      .accepted = fmt::format("0 to {}", shard.documents() - 1)});
  }
  const DocumentView document = shard.document(index);
  std::vector<std::int32_t> tokens;
  std::string targets;
  for (std::int64_t i = 0; i < document.size; ++i) {
    tokens.push_back(document.token(i));
    targets += document.trained(i) ? '1' : '0';
  }
  const std::filesystem::path table =
      std::filesystem::path(shard.name()).parent_path() / "token_bytes.json";
  facts["ids"] = tokens;
  facts["trained"] = targets;
  if (shard.layout().format == ShardFormat::fp8lab && is_present(table)) {
    facts["text"] = Vocabulary::read(table).spell(tokens);
  }
}

int inspect(const Values& values) {
  if (values.count("path") == 0)
    throw InputError({.where = "data inspect", .reason = "no path (fp8lab data --help)"});
  for (const char* option : {"document-begin", "document-end"}) {
    const auto token = values[option].as<std::int64_t>();
    if (!given(values, option) || (token >= 0 && token <= INT32_MAX)) continue;
    throw InputError({.where = "data inspect",
                      .key = fmt::format("--{}", option),
                      .found = fmt::to_string(token),
                      .accepted = fmt::format("0 to {}", INT32_MAX)});
  }
  if (given(values, "document-begin")) {
    refuse_given(values, "data inspect", {"document-end"},
                 "beside --document-begin: documents are cut at one of the two");
  }
  const DocumentDelimiter delimiter = {values["document-begin"].as<std::int64_t>(),
                                       values["document-end"].as<std::int64_t>()};
  auto report = ordered_json::array();
  for (const std::string& path : values["path"].as<std::vector<std::string>>()) {
    refuse_other_kind(path, "token shards");
    for (const std::filesystem::path& file : shard_files(path)) {
      const TokenShard shard(file, delimiter);
      report.push_back(describe(shard));
      if (values.count("document") != 0) {
        add_document(report.back(), shard, values["document"].as<std::int64_t>());
      }
    }
  }
  if (values.count("json") != 0) {
    fmt::print("{}\n", json_text(report));
    return ExitCode::kSuccess;
  }
  for (const ordered_json& facts : report) fmt::print("{}", lines_of(facts));
  return ExitCode::kSuccess;
}

}  // namespace

int data(const std::vector<std::string>& arguments) {
  const Values values =
      parse_arguments("data", data_options(), arguments, {{"action", 1}, {"path", -1}});
  if (values.count("help") != 0) return ExitCode::kSuccess;
  return run_action(
      "data", values, "action",
      {{"inspect", "path", {"document-begin", "document-end", "document", "json"}, inspect}});
}

}  // namespace fp8lab::cli
