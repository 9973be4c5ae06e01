// The [data] tables of run files: a single source, with its keys in the table itself, or a mixture
// of several, [[data.sources]].
#include <algorithm>

#include "src/config/config_names.hpp"
#include "src/config/tables/run_tables.hpp"
#include "src/config/tables/size_limits.hpp"

namespace fp8lab {
namespace {

using namespace fields;  // NOLINT: the vocabulary of the tables below

constexpr std::int64_t kLargestToken = 0x7fffffff;
constexpr std::size_t kLargestMixture = 256;

bool has_files(const SourceConfig& source) { return !is_generated(source); }
bool has_tokens(const SourceConfig& source) { return source.kind == DataKind::tokens; }

Field<SourceConfig> range_field() {
  using S = SourceConfig;
  Field<S> field = row("range", &S::range_begin,
                       "[begin, end] with 0 <= begin < end <= 1, fractions of the documents",
                       "range of the documents to read, in file order");
  field.get = [](const S& source) { return FieldList{source.range_begin, source.range_end}; };
  field.set = [](S& source, const FieldValue& value) {
    const FieldList* const list = std::get_if<FieldList>(&value);
    if (list == nullptr || list->size() != 2) return false;
    const std::optional<double> begin = number_in(list->front(), 0.0, 1.0);
    const std::optional<double> end = number_in(list->back(), 0.0, 1.0);
    if (!begin || !end || !(*begin < *end)) return false;
    source.range_begin = *begin;
    source.range_end = *end;
    return true;
  };
  field.copy = [](S& to, const S& from) {
    to.range_begin = from.range_begin;
    to.range_end = from.range_end;
  };
  return field;
}

Field<SourceConfig> path_field() {
  using S = SourceConfig;
  Field<S> field = row(
      "path", &S::paths, "a file, or a list of strings: files in order",
      "files in order; of tokens also folders, whose .tokens and .bin files come by name; lines "
      "of jsonl hold {question, answer}, {messages}, {conversations}, {prompt, completion}, "
      "{instruction, output} or {text} (src/data/README.md)");
  field.get = [](const S& source) -> FieldValue {
    if (source.paths.size() == 1) return source.paths.front().string();
    FieldList list;
    for (const std::filesystem::path& path : source.paths) list.push_back(path.string());
    return list;
  };
  field.set = [](S& source, const FieldValue& value) {
    const std::optional<std::vector<std::string>> paths = texts_of(value, true);
    const auto empty = [](const std::string& path) { return path.empty(); };
    if (!paths || paths->empty() || std::any_of(paths->begin(), paths->end(), empty)) return false;
    source.paths.assign(paths->begin(), paths->end());
    return true;
  };
  return std::move(field)
      .when(has_files, "kind = \"text\", \"jsonl\" or \"tokens\"; \"arithmetic\" reads no file")
      .required()
      .not_hashed();
}

Field<SourceConfig> families_field() {
  using S = SourceConfig;
  Field<S> field = row("families", &S::families, "a list of strings, problem families",
                       "problem families; []: all");
  field.get = [](const S& source) {
    return FieldList(source.families.begin(), source.families.end());
  };
  field.set = [](S& source, const FieldValue& value) {
    std::optional<std::vector<std::string>> families = texts_of(value, false);
    if (!families) return false;
    source.families = *std::move(families);
    return true;
  };
  return field;
}

/// The token that starts or ends every document.
Field<SourceConfig> delimiter_field(const char* word, std::int64_t DocumentDelimiter::*token,
                                    const char* help) {
  return lifted(integer(word, token, 0, kLargestToken, help), &SourceConfig::delimiter)
      .when(has_tokens, "kind = \"tokens\"");
}

const Fields<SourceConfig>& source_fields() {
  using S = SourceConfig;
  const std::string generated = "kind = \"arithmetic\"";
  static const Fields<S> rows = {
      choice("kind", &S::kind, kDataKindNames,
             "the built-in generator of arithmetic word problems (arithmetic), or the format of "
             "the files")
          .selecting(),
      range_field(),
      path_field(),
      delimiter_field("document_begin", &DocumentDelimiter::begin,
                      "token that starts every document, for files without boundaries"),
      delimiter_field("document_end", &DocumentDelimiter::end,
                      "token that ends every document, for files without boundaries"),
      families_field().when(is_generated, generated),
      integer("problems", &S::problems, 1, kMostProblems,
              "number of problems of the generated corpus")
          .when(is_generated, generated),
      integer("corpus_seed", &S::corpus_seed, 0, kNoLargestInteger,
              "random seed of the generated corpus")
          .when(is_generated, generated),
      boolean("held_out", &S::held_out, "generate problems that no training corpus contains")
          .when(is_generated, generated),
  };
  return rows;
}

void check_source(const TomlReader& reader, const SourceConfig& source) {
  if (source.delimiter.begin < 0 || source.delimiter.end < 0) return;
  reader.fail("document_end",
              {.reason = "documents are cut either at their first or at their last token",
               .accepted = "document_begin or document_end"});
}

/// One source of a mixture.
const Table<SourceConfig>& part_table() {
  static const Table<SourceConfig> table = [] {
    Table<SourceConfig> part{source_fields(), {}, check_source};
    part.fields.push_back(number("weight", &SourceConfig::weight, 1e-6, 1e6,
                                 "share of the tokens, relative to the other sources"));
    return part;
  }();
  return table;
}

class Sources : public InnerTable<DataConfig> {
 public:
  Sources() : InnerTable("sources") {}

  void read(TomlReader& outer, DataConfig& data) const override {
    std::vector<TomlReader> parts = outer.tables(word);
    if (parts.empty() && outer.has(word)) outer.fail(word, {.accepted = "at least one"});
    if (parts.size() > kLargestMixture) {
      outer.fail(word, {.found = fmt::to_string(parts.size()),
                        .reason = "of them",
                        .accepted = fmt::format("at most {}", kLargestMixture)});
    }
    if (parts.empty()) {
      SourceConfig source = usual(data);
      read_fields(outer, source_fields(), source);
      settle_fields(outer, source_fields(), source);
      check_source(outer, source);
      data.sources = {std::move(source)};
      return;
    }
    data.sources.clear();
    for (TomlReader& part : parts) read_table(part, part_table(), data.sources.emplace_back());
    if (data.sources.size() == 1) data.sources.front().weight = SourceConfig{}.weight;
  }

  std::string lines(const DataConfig& data, const DataConfig& defaults, Keys keys) const override {
    if (data.sources.size() != 1) return {};
    return lines_of(source_fields(), data.sources.front(), usual(defaults), keys);
  }
  std::string tables(const DataConfig& data, const DataConfig&, const std::string& path,
                     Keys keys) const override {
    if (data.sources.size() == 1) return {};
    const std::string name = below(path, word);
    std::string text;
    for (const SourceConfig& source : data.sources) {
      text += table_text(part_table(), source, {}, name, "[[" + name + "]]", true, keys);
    }
    return text;
  }
  void list(const std::string& path, std::vector<KeyHelp>& out) const override {
    list_fields(source_fields(), path, out);
    const std::string name = below(path, word);
    list_heading(name, "sources of a mixture, instead of the one source above", true, out);
    list_fields(part_table().fields, name, out);
  }

 private:
  /// Defaults of absent keys: those of the only source of `defaults`.
  static SourceConfig usual(const DataConfig& defaults) {
    return defaults.sources.size() == 1 ? defaults.sources.front() : SourceConfig{};
  }
};

void check_data(const TomlReader& reader, const DataConfig& data) {
  if (data.form != DataForm::prompt_response) return;
  for (const SourceConfig& source : data.sources) {
    if (source.kind != DataKind::text) continue;
    reader.fail("form", {.reason = "plain text has no prompts",
                         .accepted = "running_text, or kind = \"jsonl\""});
  }
}

}  // namespace

const Table<DataConfig>& data_table() {
  static const Table<DataConfig> table{
      {choice("form", &DataConfig::form, kDataFormNames,
              "running_text: every token is trained on; prompt_response: prompts are masked")
           .by_default("prompt_response for stages of kind sft, else running_text")},
      {shared(Sources())},
      check_data};
  return table;
}

}  // namespace fp8lab
