#include "src/config/reading/words.hpp"

#include <fmt/format.h>

#include "emulation/base/input_error.hpp"

namespace fp8lab {

void SettledOnce::settle(std::string_view setting, const std::string& word) {
  for (const auto& [other, earlier] : words_) {
    if (other != setting) continue;
    throw InputError(
        {.where = spec_,
         .key = word,
         .reason = fmt::format("after '{}', which says the {} already", earlier, setting),
         .accepted = "one of them"});
  }
  words_.emplace_back(setting, word);
}

bool SettledOnce::has(std::string_view setting) const {
  for (const auto& [other, word] : words_) {
    if (other == setting) return true;
  }
  return false;
}

}  // namespace fp8lab
