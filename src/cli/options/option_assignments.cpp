#include "src/cli/options/option_assignments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <type_traits>
#include <variant>

#include "src/cli/command.hpp"
#include "src/config/key_help.hpp"
#include "src/config/reading/nearest_name.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/reading/toml_text.hpp"

namespace fp8lab::cli {
namespace {

std::string origin_of(const std::string& key, const std::string& value) {
  return fmt::format("{}'{}={}'", kAssignmentOrigin, key, value);
}

/// Returns the path by which messages name a key: they leave the name of the stage out.
std::string path_of(const std::string& key) {
  constexpr std::string_view kStages = "stages.";
  if (!key.starts_with(kStages)) return key;
  const std::size_t dot = key.find('.', kStages.size());
  return dot == std::string::npos ? key : std::string(kStages) + key.substr(dot + 1);
}

std::string toml_of(const OptionValue& held) {
  return std::visit(
      [](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return toml_quoted(value);
        } else if constexpr (std::is_arithmetic_v<T>) {
          return fmt::format("{}", value);
        } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
          return fmt::format("[{}]", fmt::join(value, ", "));
        } else {
          FP8LAB_ASSERT(false);
          return {};
        }
      },
      held);
}

/// Returns what was typed for an option, "--pass-at 1 --pass-at 8".
std::string typed(const Values& values, const std::string& option) {
  const std::string name = values.spelled(option);
  return std::visit(
      [&](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return name;
        } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
          return fmt::format("{} {}", name, value);
        } else {
          std::string words;
          for (const auto& one : value) {
            words += fmt::format("{}{} {}", words.empty() ? "" : " ", name, one);
          }
          return words;
        }
      },
      values[option].held);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

/// Calls `change` with every field that contains words.
template <class Change>
void for_each_text(ErrorFields& fields, const Change& change) {
  for (std::string* text :
       {&fields.where, &fields.found, &fields.reason, &fields.accepted, &fields.remedy}) {
    change(*text);
  }
}

/// Returns true for "the integer -1" and the like, which repeat what was typed.
bool repeats_value(const std::string& found) {
  constexpr std::array kTold = {"the integer ", "the number ", "the string ",
                                "the list ",    "a list",      "a table"};
  return std::any_of(kTold.begin(), kTold.end(),
                     [&](const char* told) { return found.starts_with(told); });
}

/// Returns what `fields` say about their key.
std::string predicate_of(const ErrorFields& fields) {
  ErrorFields predicate{.found = fields.found, .nearest = fields.nearest, .reason = fields.reason};
  const std::string said = render(predicate);
  return fields.found.empty() || fields.verb == ":" ? said : fields.verb + " " + said;
}

/// Returns a key as --set takes it.
std::string settable(const std::string& path) {
  constexpr std::string_view kStages = "stages.";
  return path.starts_with(kStages) ? "stages.*." + path.substr(kStages.size()) : path;
}

/// Returns "PATH.{KEY,KEY}" with the keys of a table, or "" if it has none.
std::string keys_within(const std::string& table) {
  std::vector<std::string> keys;
  for (const KeyHelp& one : run_keys()) {
    const std::string& path = one.path;
    if (path.starts_with(table + ".") && path.find('.', table.size() + 1) == std::string::npos) {
      keys.push_back(path.substr(table.size() + 1));
    }
  }
  return keys.empty() ? "" : fmt::format("{}.{{{}}}", settable(table), fmt::join(keys, ","));
}

std::string without_brackets(std::string path) {
  std::erase_if(path, [](char c) { return c == '[' || c == ']'; });  // of headings
  return path;
}

/// Returns the keys of tables whose last part is `key`, as --set takes them; empty if there are
/// none. Those of stages come first.
std::string keys_of_tables(const std::string& key) {
  std::vector<std::string> found;
  for (const KeyHelp& one : run_keys()) {
    const std::string path = without_brackets(one.path);
    if (!path.ends_with("." + key)) continue;
    const std::string words = one.is_table ? keys_within(path) : settable(path);
    if (words.empty()) continue;
    found.insert(words.starts_with("stages.") ? found.begin() : found.end(), words);
  }
  return found.empty() ? "" : fmt::format("in a table: {}", fmt::join(found, ", "));
}

/// As keys_of_tables for the last part of `path`; where there are none, those of the key that it
/// may mean. Within a table only a name of other programs is taken for another key.
std::string keys_meant(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  const std::string key = path.substr(dot + 1);
  const std::string keys = keys_of_tables(key);
  if (!keys.empty()) return keys;
  std::vector<std::string> names;
  for (const KeyHelp& one : run_keys()) {
    const std::string known = without_brackets(one.path);
    names.push_back(known.substr(known.rfind('.') + 1));
  }
  const std::string meant =
      dot == std::string::npos ? nearest_name(key, names) : name_elsewhere(key, names);
  return meant.empty() ? meant : keys_of_tables(meant);
}

}  // namespace

std::string keys_named(const std::string& word, const std::string& table) {
  std::vector<std::string> names, found;
  for (const KeyHelp& one : run_keys()) {
    const std::string path = without_brackets(one.path);
    names.push_back(path.substr(path.rfind('.') + 1));
  }
  std::string key = word;
  std::replace(key.begin(), key.end(), '-', '_');
  if (std::string ours = name_elsewhere(word, names); !ours.empty()) key = std::move(ours);
  for (const KeyHelp& one : run_keys()) {
    const std::string path = without_brackets(one.path);
    if (!path.starts_with(table) || (path != key && !path.ends_with("." + key))) continue;
    std::string words = one.is_table ? keys_within(path) : settable(path);
    if (words.empty()) continue;
    if (!table.empty()) words = path.substr(table.size());  // which --set leaves out
    found.push_back(words);
  }
  return fmt::format("{}", fmt::join(found, ", "));
}

void OptionAssignments::add(const std::string& option, const std::string& key) {
  add(option, key, given(values_, option) ? toml_of(values_[option].held) : std::string());
}

void OptionAssignments::add(const std::string& option, const std::string& key,
                            const std::string& toml) {
  name_key(option, key);
  if (!given(values_, option)) return;
  refuse_twice(key, typed(values_, option));
  all_.push_back({key, toml});
  explain(option, key, toml);
}

void OptionAssignments::add_set(const std::string& table) {
  for (const auto& [key, value, place] : assignments_of(values_)) {
    const std::string words = fmt::format("--set {}={}", key, value);
    refuse_twice(table + key, words);
    all_.push_back({table + key, value, place});
    written_.push_back({table + key, origin_of(table + key, value), words, path_of(table + key),
                        table.empty() ? "" : path_of(table)});
  }
}

void OptionAssignments::append(const OptionAssignments& others) {
  all_.insert(all_.end(), others.all_.begin(), others.all_.end());
  written_.insert(written_.end(), others.written_.begin(), others.written_.end());
  options_.insert(others.options_.begin(), others.options_.end());
  phrases_.insert(others.phrases_.begin(), others.phrases_.end());
}

void OptionAssignments::explain(const std::string& option, const std::string& key,
                                const std::string& value) {
  if (!given(values_, option)) return;
  written_.push_back({key, origin_of(key, value), typed(values_, option), path_of(key), {}});
}

void OptionAssignments::name_key(const std::string& option, const std::string& key) {
  options_.emplace(path_of(key), option);
}

void OptionAssignments::refuse_twice(const std::string& key, const std::string& words) const {
  for (const Written& before : written_) {
    if (before.key != key || before.words == words) continue;
    throw InputError({.where = fmt::format("{}: {}", command_, words),
                      .reason = before.words + " sets the same",
                      .accepted = "one of the two"});
  }
}

const OptionAssignments::Written* OptionAssignments::find_written(
    const std::string& message) const {
  for (const Written& one : written_) {
    if (message.find(one.origin) != std::string::npos) return &one;
  }
  return nullptr;
}

void OptionAssignments::name_option(const Written& about, ErrorFields& fields) const {
  std::string said;
  if (!fields.noun.empty()) {
    ErrorFields sentence = fields;
    for (std::string* other : {&sentence.where, &sentence.accepted, &sentence.remedy}) {
      other->clear();
    }
    said = render(sentence);
  } else if (fields.key != about.path && !fields.key.empty()) {
    const auto other = options_.find(fields.key);
    const std::string name =
        other == options_.end() ? quoted_word(fields.key) : values_.spelled(other->second);
    said = fmt::format("{}{} {}", name, fields.verb == ":" ? ":" : "", predicate_of(fields));
  } else if (!repeats_value(fields.found) || fields.accepted.empty()) {
    said = predicate_of(fields);
  }
  const std::size_t space = about.words.find(' ');
  fields.noun.clear();
  fields.key = about.words.substr(0, space);
  fields.verb.clear();
  fields.found = space == std::string::npos ? std::string() : about.words.substr(space + 1);
  fields.nearest.clear();
  fields.reason = said.empty() ? said : ": " + said;
}

ErrorFields OptionAssignments::in_options(ErrorFields fields) const {
  const std::string before = render(fields);
  const Written* const about = find_written(before);
  if (about == nullptr) {  // of a file
    const bool is_bare = fields.noun == "unknown key" && fields.nearest.empty();
    if (is_bare && fields.remedy.empty()) fields.remedy = keys_meant(fields.key);
    return fields;
  }
  const bool is_set = about->words.starts_with("--set ");
  if (is_set && fields.noun == "unknown key" && fields.remedy.empty()) {
    fields.remedy = fields.nearest.empty() ? keys_meant(about->key) : keys_of_tables(about->key);
  }
  if (is_set && fields.accepted == "a table" && fields.remedy.empty()) {
    fields.remedy = keys_within(about->path);
  }
  const std::size_t at = fields.where.find(about->origin);
  if (at == std::string::npos) {
    if (before.starts_with(about->origin)) fields.where = command_;
  } else if (is_set) {
    fields.where.replace(at, about->origin.size(), about->words);
    if (at == 0) fields.where = command_ + ": " + fields.where;
  } else {
    const std::string place = fields.where.substr(0, at);
    fields.where = at == 0 ? command_ : place.substr(0, place.find_last_not_of(": ") + 1);
    name_option(*about, fields);
  }
  for_each_text(fields, [&](std::string& text) {
    for (const Written& other : written_) replace_all(text, other.origin, other.words);
    if (is_set && !about->table.empty()) replace_all(text, "'" + about->table, "'");
    for (const auto& [path, option] : options_) {
      if (!is_set) replace_all(text, "'" + path + "'", values_.spelled(option));
    }
    for (const auto& [phrase, words] : phrases_) replace_all(text, phrase, words);
  });
  if (is_set && !about->table.empty() && fields.key.starts_with(about->table)) {
    fields.key.erase(0, about->table.size());
  }
  return fields;
}

}  // namespace fp8lab::cli
