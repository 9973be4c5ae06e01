#include "src/cli/options/option_assignments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <type_traits>
#include <variant>

#include "src/cli/command.hpp"
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

/// Removes "'PATH'" at `at`, where the words before it say as much; also "is the integer -1; ".
void drop_path(std::string& message, std::size_t at, const std::string& path) {
  const std::string quoted = ": '" + path + "'";
  if (message.compare(at, quoted.size(), quoted) != 0) return;
  const bool is_colon = message.compare(at + quoted.size(), 1, ":") == 0;
  message.erase(is_colon ? at : at + 2, is_colon ? quoted.size() : quoted.size() - 1);
  constexpr std::array kTold = {"is the integer ", "is the number ", "is the string ",
                                "is the list ",    "is a list",      "is a table"};
  for (const char* told : kTold) {
    if (message.compare(at + 2, std::string_view(told).size(), told) != 0) continue;
    const std::size_t accepted = message.find("; accepted: ", at);
    if (accepted != std::string::npos) message.erase(at + 2, accepted - at);
    return;
  }
}

}  // namespace

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
    throw Error(fmt::format("{}: {}: {} sets the same; accepted: one of the two", command_, words,
                            before.words));
  }
}

const OptionAssignments::Written* OptionAssignments::find_written(
    const std::string& message) const {
  for (const Written& one : written_) {
    if (message.find(one.origin) != std::string::npos) return &one;
  }
  return nullptr;
}

std::string OptionAssignments::in_options(std::string message) const {
  const Written* const about = find_written(message);
  if (about == nullptr) return message;
  const bool is_set = about->words.starts_with("--set ");
  const std::size_t at = message.find(about->origin);
  message.replace(at, about->origin.size(), about->words);
  if (!is_set) drop_path(message, at + about->words.size(), about->path);
  for (const Written& other : written_) replace_all(message, other.origin, other.words);
  if (is_set && !about->table.empty()) replace_all(message, "'" + about->table, "'");
  for (const auto& [path, option] : options_) {
    if (!is_set) replace_all(message, "'" + path + "'", values_.spelled(option));
  }
  for (const auto& [phrase, words] : phrases_) replace_all(message, phrase, words);
  return at == 0 ? command_ + ": " + message : message;
}

}  // namespace fp8lab::cli
