// Functions shared by the readers of words between slashes.
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "emulation/spec/recipe_names.hpp"

namespace fp8lab {

/// Returns the number that the whole of `text` spells; nothing for other texts and
/// for numbers out of range.
template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || last != end || text.empty()) return std::nullopt;
  return value;
}

/// Records which word has set each setting of a spec and refuses a second
/// word for the same setting.
class SettledOnce {
 public:
  /// `spec` begins every message, such as "quantizer 'e5m2/row'".
  explicit SettledOnce(std::string spec) : spec_(std::move(spec)) {}

  /// Records the word. Throws Error if an earlier word has set the same setting.
  void settle(std::string_view setting, const std::string& word);
  bool has(std::string_view setting) const;
  /// The settings and their words, in the order of the words.
  const std::vector<std::pair<std::string_view, std::string>>& words() const { return words_; }

  /// Settles `setting` with `word` if `word` is one of `names`; returns false otherwise.
  template <class T, std::size_t N>
  bool take(std::string_view setting, const std::array<Named<T>, N>& names, const std::string& word,
            T& value) {
    for (const Named<T>& entry : names) {
      if (entry.name != word) continue;
      settle(setting, word);
      value = entry.value;
      return true;
    }
    return false;
  }

 private:
  std::string spec_;
  std::vector<std::pair<std::string_view, std::string>> words_;
};

}  // namespace fp8lab
