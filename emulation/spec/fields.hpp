// A table of fields for a struct. Each row has the key of a member in files, its accepted values,
// the condition under which it matters, and its purpose. Readers, writers, hashes and help are
// generated from such tables (src/config/README.md). This header knows no file format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "emulation/spec/recipe_names.hpp"

namespace fp8lab {

/// A value in the form of files, keywords and words.
struct FieldValue;
using FieldList = std::vector<FieldValue>;
struct FieldValue : std::variant<bool, std::int64_t, double, std::string, FieldList> {
  using variant::variant;
};

/// One row of a table: a key of S.
template <class S>
struct Field {
  std::string word;                ///< the key
  std::string accepted;            ///< accepted values: "an integer from 1 to 64"
  std::string help;                ///< purpose and unit, in one line
  std::vector<std::string> names;  ///< accepted words, to suggest the nearest one
  bool is_text = false;            ///< written in quotes

  std::function<FieldValue(const S&)> get;
  /// Returns false, and sets nothing, for values that are not accepted.
  std::function<bool(S&, const FieldValue&)> set;
  std::function<void(S&, const S&)> copy;  ///< member of the second object into the first

  std::function<bool(const S&)> condition;      ///< whether it matters; empty: always
  std::string needs;                            ///< the condition in words: kind = "wsd"
  std::function<FieldValue(const S&)> follows;  ///< its default, computed from other fields
  std::string follows_words;                    ///< the same in words: "batch_sequences"; also if
                                                ///< only a recipe, not the row, knows the default
  bool is_required = false;          ///< must be written if it matters: it has no default
  bool is_hashed = true;             ///< part of the hash that identifies a configuration
  bool selects = false;              ///< another value resets all other fields to their defaults
  bool may_be_idle = false;          ///< may be written if it does not matter
  bool default_may_be_said = false;  ///< its default may be written if it does not matter
  bool stands_alone = false;         ///< label() writes the value without the word
  bool counts_steps = false;         ///< shrinks or grows with a run that is made shorter or longer
  bool may_be_share = false;         ///< a number with a decimal point is a fraction
                                     ///< of the surrounding steps

  bool matters(const S& object) const { return !condition || condition(object); }

  // Each of these functions returns the changed row.
  Field when(std::function<bool(const S&)> holds, std::string words) &&;
  Field otherwise(std::function<FieldValue(const S&)> value, std::string words) &&;
  Field by_default(std::string words) && {
    return follows_words = std::move(words), std::move(*this);
  }
  Field required() && { return (is_required = true), std::move(*this); }
  /// For fields that change no bit of a run, and for names of things whose content is hashed.
  Field not_hashed() && { return (is_hashed = false), std::move(*this); }
  Field selecting() && { return (selects = true), std::move(*this); }
  Field ignored_otherwise() && { return (may_be_idle = true), std::move(*this); }
  Field default_always() && { return (default_may_be_said = true), std::move(*this); }
  Field alone() && { return (stands_alone = true), std::move(*this); }
  Field counting_steps() && { return (counts_steps = true), std::move(*this); }
  /// As above; files may give a fraction of the stage's steps instead.
  Field or_share() && {
    counts_steps = may_be_share = true;
    accepted += ", or a fraction of the stage's steps from 0.0 to 1.0";
    return std::move(*this);
  }
};

template <class S>
using Fields = std::vector<Field<S>>;

template <class S>
Field<S> Field<S>::when(std::function<bool(const S&)> holds, std::string words) && {
  condition = std::move(holds);
  needs = std::move(words);
  return std::move(*this);
}

template <class S>
Field<S> Field<S>::otherwise(std::function<FieldValue(const S&)> value, std::string words) && {
  follows = std::move(value);
  follows_words = std::move(words);
  return std::move(*this);
}

// Functions that create rows.
namespace fields {

inline constexpr std::int64_t kNoLargestInteger = std::numeric_limits<std::int64_t>::max();
inline constexpr double kNoLargestNumber = std::numeric_limits<double>::max();

/// Returns "an integer from 1 to 64", "a number of at least 0".
std::string integers(std::int64_t least, std::int64_t most);
std::string numbers(double least, double most);
/// Returns "a, b, c".
std::string listed(const std::vector<std::string>& names);

/// Returns the number in a value if it is within the bounds; an integer is a number as well.
std::optional<std::int64_t> integer_in(const FieldValue& value, std::int64_t least,
                                       std::int64_t most);
std::optional<double> number_in(const FieldValue& value, double least, double most);

/// Returns the double with the fewest digits that is `value` in FP32.
double shortest_double(float value);

/// Creates a row without access to its value.
template <class S, class T>
// NOLINTNEXTLINE(performance-unnecessary-value-param): the moves into a dependent type are not seen
Field<S> row(std::string word, T S::*member, std::string accepted, std::string help) {
  Field<S> field;
  field.word = std::move(word);
  field.accepted = std::move(accepted);
  field.help = std::move(help);
  field.copy = [=](S& to, const S& from) { to.*member = from.*member; };
  return field;
}

/// Creates a row of an int, std::int64_t or std::uint64_t.
template <class S, class Integer>
Field<S> integer(std::string word, Integer S::*member, std::int64_t least, std::int64_t most,
                 std::string help) {
  Field<S> field = row(std::move(word), member, integers(least, most), std::move(help));
  field.get = [=](const S& object) { return static_cast<std::int64_t>(object.*member); };
  field.set = [=](S& object, const FieldValue& value) {
    const std::optional<std::int64_t> given = integer_in(value, least, most);
    if (given) object.*member = static_cast<Integer>(*given);
    return given.has_value();
  };
  return field;
}

/// Creates a row of a float or double, which is always finite. A number that a float would hold as
/// zero is refused: zero mostly has a meaning of its own.
template <class S, class Float>
Field<S> number(std::string word, Float S::*member, double least, double most, std::string help) {
  Field<S> field = row(std::move(word), member, numbers(least, most), std::move(help));
  field.get = [=](const S& object) -> FieldValue {
    if constexpr (std::is_same_v<Float, float>) return shortest_double(object.*member);
    return static_cast<double>(object.*member);
  };
  field.set = [=](S& object, const FieldValue& value) {
    const std::optional<double> given = number_in(value, least, most);
    const bool vanishes = given && *given != 0 && static_cast<Float>(*given) == 0;
    if (given && !vanishes) object.*member = static_cast<Float>(*given);
    return given && !vanishes;
  };
  return field;
}

template <class S>
Field<S> boolean(std::string word, bool S::*member, std::string help) {
  Field<S> field = row(std::move(word), member, "true or false", std::move(help));
  field.get = [=](const S& object) { return object.*member; };
  field.set = [=](S& object, const FieldValue& value) {
    const bool* const given = std::get_if<bool>(&value);
    if (given != nullptr) object.*member = *given;
    return given != nullptr;
  };
  return field;
}

/// Creates a row of a member that `to` and `from` convert to and from text;
/// from(std::string_view) returns an optional.
template <class S, class T, class From, class To>
Field<S> spelled(std::string word, T S::*member, From from, To to, std::string accepted,
                 std::string help) {
  Field<S> field = row(std::move(word), member, std::move(accepted), std::move(help));
  field.is_text = true;
  field.get = [=](const S& object) { return std::string(to(object.*member)); };
  field.set = [=](S& object, const FieldValue& value) {
    const std::string* const text = std::get_if<std::string>(&value);
    if (text == nullptr) return false;
    std::optional<T> given = from(std::string_view(*text));
    if (!given) return false;
    object.*member = *std::move(given);
    return true;
  };
  return field;
}

/// Creates a row that accepts the words of a table of names.
template <class S, class T, std::size_t N>
Field<S> choice(std::string word, T S::*member, const std::array<Named<T>, N>& words,
                std::string help) {
  const std::array<Named<T>, N>* const table = &words;
  const auto from = [table](std::string_view name) { return value_for(*table, name); };
  std::vector<std::string> names;
  for (const Named<T>& entry : words) names.emplace_back(entry.name);
  Field<S> field = spelled(
      std::move(word), member, from, [table](T value) { return word_for(*table, value); },
      listed(names), std::move(help));
  field.names = std::move(names);
  return field;
}

/// Creates a row of a std::string or path; `is_valid` may be empty.
template <class S, class Text>
Field<S> text(std::string word, Text S::*member, std::string accepted, std::string help,
              bool (*is_valid)(std::string_view) = nullptr) {
  const auto from = [is_valid](std::string_view given) -> std::optional<Text> {
    if (is_valid != nullptr && !is_valid(given)) return std::nullopt;
    return Text(std::string(given));
  };
  const auto to = [](const Text& value) {
    if constexpr (std::is_same_v<Text, std::string>) {
      return value;
    } else {
      return value.string();
    }
  };
  return spelled(std::move(word), member, from, to, std::move(accepted), std::move(help));
}

/// Turns a row of a member into a row of the struct that holds it and whose table has its key.
template <class S, class T>
Field<S> lifted(const Field<T>& inner, T S::*member) {
  Field<S> field = row(inner.word, member, inner.accepted, inner.help);
  field.names = inner.names;
  field.is_text = inner.is_text;
  field.get = [=](const S& object) { return inner.get(object.*member); };
  field.set = [=](S& object, const FieldValue& value) { return inner.set(object.*member, value); };
  field.copy = [=](S& to, const S& from) { inner.copy(to.*member, from.*member); };
  if (inner.condition) {
    field.condition = [=](const S& object) { return inner.condition(object.*member); };
  }
  field.needs = inner.needs;
  field.follows_words = inner.follows_words;
  field.may_be_idle = inner.may_be_idle;
  field.stands_alone = inner.stands_alone;
  return field;
}

template <class S, class T>
void lift(const Fields<T>& inner, T S::*member, Fields<S>& outer) {
  for (const Field<T>& field : inner) outer.push_back(lifted(field, member));
}

}  // namespace fields

/// Resets every field that does not matter to its default, in the order of the table.
template <class S>
void reset_idle(const Fields<S>& fields, S& object) {
  const S plain;
  for (const Field<S>& field : fields) {
    if (!field.matters(object)) field.copy(object, plain);
  }
}

/// Returns the row of a key, or null.
template <class S>
const Field<S>* find_field(const Fields<S>& fields, std::string_view word) {
  for (const Field<S>& field : fields) {
    if (field.word == word) return &field;
  }
  return nullptr;
}

}  // namespace fp8lab
