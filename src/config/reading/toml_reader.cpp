#include "src/config/reading/toml_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/reading/toml_text.hpp"
#include "src/io/shell_word.hpp"

namespace fp8lab {
namespace {

std::string format_location(const toml::source_region& region, const std::string& origin) {
  const std::string path = region.path ? *region.path : origin;
  if (path.rfind(kAssignmentOrigin, 0) == 0 || !region.begin) return path;
  return fmt::format("{}:{}:{}", path, region.begin.line, region.begin.column);
}

// Returns the region of a node, or of the first value inside it: tables created for an assignment's
// dotted key have no region of their own.
toml::source_region region_of(const toml::node& node) {
  if (node.source().begin) return node.source();
  if (const toml::table* table = node.as_table()) {
    for (const auto& [key, value] : *table) {
      const toml::source_region region = region_of(value);
      if (region.begin) return region;
    }
  }
  return {};
}

std::string describe_list(const toml::array& list) {
  constexpr std::size_t kLongest = 60;
  const std::optional<FieldValue> value = value_of(list);
  const std::string text = value ? toml_text(*value) : std::string();
  if (text.empty() || text.size() > kLongest) return "a list";
  return "the list " + text;
}

std::string describe_type(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return describe_list(*node.as_array());
    case toml::node_type::string: return fmt::format("the string '{}'", *node.value<std::string>());
    case toml::node_type::integer:
      return fmt::format("the integer {}", *node.value<std::int64_t>());
    case toml::node_type::floating_point:
      return fmt::format("the number {}", *node.value<double>());
    case toml::node_type::boolean: return *node.value<bool>() ? "true" : "false";
    default: return "a date or time";
  }
}

/// Returns the position after the string that begins at `begin`. An unterminated string extends to
/// the end of its line or, if it may span lines, of the text; the parser reports it.
std::size_t end_of_string(const std::string& text, std::size_t begin) {
  const char quote = text[begin];
  const bool many_lines = text.compare(begin, 3, std::string(3, quote)) == 0;
  const std::size_t quotes = many_lines ? 3 : 1;
  for (std::size_t i = begin + quotes; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\')
      ++i;
    else if (text[i] == '\n' && !many_lines)
      return i;
    else if (text.compare(i, quotes, std::string(quotes, quote)) == 0)
      return i + quotes;
  }
  return text.size();
}

/// Names the files of this program that are no text.
void refuse_binary(const std::string& text, const std::string& origin) {
  if (text.starts_with("\x89HDF")) {
    throw InputError({.where = origin,
                      .reason = "is an HDF5 file, the record of a run or study, not TOML",
                      .remedy = "fp8lab report " + shell_path(origin)});
  }
  // Eight bytes of the header's length before its JSON.
  if (text.size() > 9 && text[7] == '\0' && text[8] == '{') {
    throw InputError({.where = origin,
                      .reason = "is a safetensors file, not TOML",
                      .remedy = "fp8lab eval " + shell_path(origin)});
  }
}

}  // namespace

std::optional<FieldValue> value_of(const toml::node& node) {
  if (const auto* flag = node.as_boolean()) return FieldValue(flag->get());
  if (const auto* integer = node.as_integer()) return FieldValue(integer->get());
  if (const auto* number = node.as_floating_point()) return FieldValue(number->get());
  if (const auto* text = node.as_string()) return FieldValue(text->get());
  if (!node.is_array()) return std::nullopt;
  FieldList values;
  for (const toml::node& element : *node.as_array()) {
    std::optional<FieldValue> value = value_of(element);
    if (!value) return std::nullopt;
    values.push_back(*std::move(value));
  }
  return FieldValue(std::move(values));
}

void check_toml_depth(const std::string& text, const std::string& origin) {
  std::size_t depth = 0, dots = 0, line = 1, line_begin = 0;
  const auto refuse = [&](std::size_t at, const char* what) {
    throw InputError({.where = fmt::format("{}:{}:{}", origin, line, at - line_begin + 1),
                      .reason = what,
                      .accepted = fmt::format("at most {}", kDeepestToml)});
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') i = std::min(text.find('\n', i), text.size()) - 1;
    if (c == '"' || c == '\'') {
      const std::size_t end = end_of_string(text, i);
      for (; i < end; ++i) {
        if (text[i] == '\n') ++line, line_begin = i + 1;
      }
      --i;
      continue;
    }
    if (c == '[' || c == '{') {
      if (++depth > kDeepestToml) refuse(i, "lists and tables in one another, too many of them");
    }
    if ((c == ']' || c == '}') && depth > 0) --depth;
    dots = c == '.' ? dots + 1
                    : (std::string_view("[]{}=,\n").find(c) == std::string_view::npos ? dots : 0);
    if (dots >= kDeepestToml) refuse(i, "a key of too many parts");
    if (c == '\n') ++line, line_begin = i + 1;
  }
}

toml::table parse_toml(const std::string& text, const std::string& origin) {
  refuse_binary(text, origin);
  check_toml_depth(text, origin);
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& error) {
    std::string reason(error.description());
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    // Keys such as model are a name or a table.
    if (reason.find("cannot redefine existing string") != std::string::npos) {
      reason += "; a name goes into its table, as base = \"NAME\"";
    }
    throw InputError({.where = format_location(error.source(), origin),
                      .reason = fmt::format("not TOML: {}", reason)});
  }
}

std::string source_location(const toml::node& node, const std::string& origin) {
  return format_location(region_of(node), origin);
}

std::string join_names(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

void assign_integer(toml::table& table, const std::string& key, std::int64_t value,
                    const std::string& from) {
  toml::table made =
      toml::parse(fmt::format("value = {}", value), fmt::format("{}'{}'", kAssignmentOrigin, from));
  table.erase(key);
  table.insert(key, std::move(*made.get_as<std::int64_t>("value")));
}

std::int64_t steps_times(std::int64_t steps, double factor) {
  return std::max<std::int64_t>(1, std::llround(static_cast<double>(steps) * factor));
}

TomlReader::TomlReader(const toml::table& table, std::string path, std::string origin)
    : table_(&table), path_(std::move(path)), origin_(std::move(origin)) {}

bool TomlReader::has(std::string_view key) const { return table_->contains(key); }

void TomlReader::known(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.emplace_back(key);
}

const toml::node* TomlReader::node(std::string_view key) {
  known(key);
  return table_->get(key);
}

std::string TomlReader::text(std::string_view key, std::string fallback) {
  const toml::node* value = node(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) wrong_type(key, "a string");
  return *value->value<std::string>();
}

std::vector<std::string> TomlReader::texts(std::string_view key) {
  std::vector<std::string> result;
  const toml::node* value = node(key);
  if (value == nullptr) return result;
  const toml::array* list = value->as_array();
  if (list == nullptr) wrong_type(key, "a list of strings");
  for (const toml::node& element : *list) {
    if (!element.is_string()) {
      throw InputError({.where = source_location(element, origin_),
                        .key = path_of(key),
                        .verb = "holds",
                        .found = describe_type(element),
                        .accepted = "a list of strings"});
    }
    result.push_back(*element.value<std::string>());
  }
  return result;
}

std::optional<TomlReader> TomlReader::table(std::string_view key) {
  const toml::node* value = node(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_table()) wrong_type(key, "a table");
  TomlReader inner(*value->as_table(), path_of(key), origin_);
  inner.shared_steps_ = shared_steps_;
  inner.recipes_ = recipes_;
  return inner;
}

std::vector<TomlReader> TomlReader::tables(std::string_view key) {
  std::vector<TomlReader> result;
  const toml::node* value = node(key);
  if (value == nullptr) return result;
  const std::string accepted = fmt::format("a list of tables, [[{}]]", path_of(key));
  if (!value->is_array()) wrong_type(key, accepted);
  for (const toml::node& element : *value->as_array()) {
    if (!element.is_table()) wrong_type(key, accepted);
    result.emplace_back(*element.as_table(), path_of(key), origin_);
    result.back().shared_steps_ = shared_steps_;
    result.back().recipes_ = recipes_;
  }
  return result;
}

FieldValue TomlReader::without_share(const FieldValue& value) const {
  const double* const share = std::get_if<double>(&value);
  if (share == nullptr || !shared_steps_ || !(*share >= 0.0 && *share <= 1.0)) return value;
  return *share == 0.0 ? std::int64_t{0} : steps_times(*shared_steps_, *share);
}

void TomlReader::finish() const {
  for (const auto& [key, value] : *table_) {
    if (std::find(known_.begin(), known_.end(), key.str()) != known_.end()) continue;
    throw InputError({.where = where(key.str()),
                      .noun = "unknown key",
                      .key = path_of(key.str()),
                      .nearest = did_you_mean(key.str(), known_),
                      .accepted = join_names(known_)});
  }
}

void TomlReader::refuse(std::string_view key, ErrorFields fields) const {
  fields.where = where(key);
  fields.key = path_of(key);
  throw InputError(std::move(fields));
}

void TomlReader::refuse_value(std::string_view key, bool is_text, const std::string& accepted,
                              const std::vector<std::string>& names) const {
  const toml::node& value = *table_->get(key);
  const bool is_name = is_text && value.is_string();
  if (!is_name) wrong_type(key, is_text ? "a string: " + accepted : accepted);
  const std::string word = *value.value<std::string>();
  refuse(key,
         {.found = quoted_word(word), .nearest = did_you_mean(word, names), .accepted = accepted});
}

void TomlReader::fail(std::string_view key, ErrorFields fields) const {
  fields.verb = ":";
  refuse(key, std::move(fields));
}

void TomlReader::wrong_type(std::string_view key, const std::string& accepted) const {
  refuse(key, {.found = describe_type(*table_->get(key)), .accepted = accepted});
}

std::string TomlReader::where(std::string_view key) const {
  const auto entry = table_->find(key);
  if (entry == table_->end()) return where();
  const toml::source_region& region = entry->first.source();
  return region.begin ? format_location(region, origin_) : source_location(entry->second, origin_);
}

std::string TomlReader::where() const { return source_location(*table_, origin_); }

std::string TomlReader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

}  // namespace fp8lab
