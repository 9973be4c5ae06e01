// Bad input as fields, and the one place that puts them into words.
#pragma once

#include <string>

#include "emulation/base/error.hpp"

namespace fp8lab {

/// What is wrong with an input. A field that does not apply is empty. The message has the fields in
/// their order here:
///
///   run.toml:7:3: 'model.head_dim' is 7; accepted: an even number
///   where         key              |  found        accepted
///                                  verb
struct ErrorFields {
  /// The place: a command, file:line:column, a file, a layer, a GEMM.
  std::string where = {};
  /// Comes before the key if it is no key of a configuration: "tensor", "unknown recipe".
  std::string noun = {};
  /// The name of what is wrong: a key, "--option", tensor, operand. An option is printed as it is
  /// typed, with the value behind it, capitals (SOURCE, K) as they are, other names in quotes.
  std::string key = {};
  /// Joins key and found: "is", "=", "holds"; ":" joins the key and a sentence.
  std::string verb = "is";
  /// The value that is there, as messages show it: a word with its quotes.
  std::string found = {};
  /// " (did you mean 'infir2'?)" (src/config/reading/nearest_name.hpp).
  std::string nearest = {};
  /// Why it is refused: the rest of the sentence. Begins with ',', ':' or ';' if one joins it.
  std::string reason = {};
  /// What would be accepted: one name, several with ", " between them, words, or a circumstance
  /// that begins with "in", "with" or "without".
  std::string accepted = {};
  /// What to do instead.
  std::string remedy = {};

  bool operator==(const ErrorFields&) const = default;
};

/// Returns the message.
std::string render(const ErrorFields& fields);

/// Bad input with its fields; what() is render(fields()).
class InputError : public Error {
 public:
  explicit InputError(ErrorFields fields);
  const ErrorFields& fields() const { return fields_; }

 private:
  ErrorFields fields_;
};

/// Returns the fields of an InputError. The message of any other Error is its reason.
ErrorFields fields_of(const Error& error);

/// Returns the fields of an error with `place` before its where: the study that names the file,
/// say.
ErrorFields in_place(const std::string& place, const Error& error);

/// Returns "'WORD'", as `found` shows words.
std::string quoted_word(const std::string& word);

}  // namespace fp8lab
