#include "emulation/base/input_error.hpp"

#include <string_view>
#include <utility>

namespace fp8lab {
namespace {

bool is_option(const std::string& key) { return key.starts_with("--"); }

/// Names that are printed without quotes: options, and what usage lines and formulas write in
/// capitals (SOURCE, K).
bool is_bare(const ErrorFields& fields) {
  if (is_option(fields.key)) return true;
  constexpr std::string_view kCapitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return fields.noun.empty() && fields.key.find_first_not_of(kCapitals) == std::string::npos;
}

/// Appends `words` to a sentence; a mark of punctuation follows without a space.
void join(std::string& sentence, const std::string& words) {
  if (words.empty()) return;
  constexpr std::string_view kMarks = ",:;";
  if (!sentence.empty() && kMarks.find(words.front()) == std::string_view::npos) sentence += ' ';
  sentence += words;
}

/// The sentence without place and accepted values. It may be a name alone, "'axis'".
std::string sentence_of(const ErrorFields& fields) {
  std::string sentence = fields.noun;
  if (!fields.key.empty()) {
    join(sentence, is_bare(fields) ? fields.key : quoted_word(fields.key));
    const bool has_more = !fields.found.empty() || !fields.reason.empty();
    const bool is_colon = fields.verb == ":";
    const bool has_verb = is_colon ? has_more : !fields.found.empty();
    if (has_verb && !is_option(fields.key)) join(sentence, fields.verb);
  }
  join(sentence, fields.found);
  sentence += fields.nearest;
  join(sentence, fields.reason);
  return sentence;
}

/// Returns true if the sentence says what is wrong, and false if it is a name, or an option with
/// its value, of which only the accepted values say that.
bool is_complete(const ErrorFields& fields) {
  if (!fields.reason.empty() || !fields.noun.empty()) return true;
  return !fields.found.empty() && !is_option(fields.key);
}

/// Returns true for "with NAMES" and the like, which say when the input would be accepted.
bool is_circumstance(const std::string& accepted) {
  return accepted.starts_with("with ") || accepted.starts_with("in ") ||
         accepted.starts_with("without ");
}

}  // namespace

std::string render(const ErrorFields& fields) {
  std::string message = fields.where;
  const std::string sentence = sentence_of(fields);
  if (!sentence.empty()) message += (message.empty() ? "" : ": ") + sentence;
  if (!fields.accepted.empty()) {
    if (!message.empty()) message += is_complete(fields) ? "; " : ": ";
    message += (is_circumstance(fields.accepted) ? "accepted " : "accepted: ") + fields.accepted;
  }
  if (!fields.remedy.empty()) message += (message.empty() ? "" : "; ") + fields.remedy;
  return message;
}

InputError::InputError(ErrorFields fields) : Error(render(fields)), fields_(std::move(fields)) {}

ErrorFields fields_of(const Error& error) {
  const auto* const input = dynamic_cast<const InputError*>(&error);
  return input != nullptr ? input->fields() : ErrorFields{.reason = error.what()};
}

ErrorFields in_place(const std::string& place, const Error& error) {
  ErrorFields fields = fields_of(error);
  fields.where = fields.where.empty() ? place : place + ": " + fields.where;
  return fields;
}

std::string quoted_word(const std::string& word) { return "'" + word + "'"; }

}  // namespace fp8lab
