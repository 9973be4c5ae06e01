// Strict reading of TOML: every key must be read by the program, every value must have the right
// type and range, and every message names file, line, column, key and the accepted values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <toml++/toml.h>

#include "emulation/base/input_error.hpp"
#include "emulation/spec/fields.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/config/reading/nearest_name.hpp"

namespace fp8lab {

/// Prefix of the source names of values that come from an assignment; such values have no line.
inline constexpr std::string_view kAssignmentOrigin = "assignment ";

/// Largest number of parts of a key, and of nested lists and inline tables: recursive functions
/// over deeper documents would exhaust the stack.
inline constexpr std::size_t kDeepestToml = 32;

/// Throws Error with file:line:column for text nested more deeply than kDeepestToml.
/// Accepts text that is not TOML.
void check_toml_depth(const std::string& text, const std::string& origin);

/// Parses a document; messages name `origin` as the file. Throws Error with file:line:column.
toml::table parse_toml(const std::string& text, const std::string& origin);

/// Returns "file:line:column" of a node, or the assignment it comes from;
/// `origin` if it has no source.
std::string source_location(const toml::node& node, const std::string& origin);

/// "a, b, c".
std::string join_names(const std::vector<std::string>& names);

/// Returns the value of a node; nothing for tables, dates and lists that contain them.
std::optional<FieldValue> value_of(const toml::node& node);

/// Sets a key of `table`; messages about the key name the assignment `from`, "scale=0.1".
void assign_integer(toml::table& table, const std::string& key, std::int64_t value,
                    const std::string& from);

/// Returns `steps` times `factor`, rounded to the nearest integer, at least 1.
std::int64_t steps_times(std::int64_t steps, double factor);

/// Reads one table of a document. The getters return the fallback if the key is absent, throw Error
/// if its value does not fit, and mark the key as read; finish() then rejects every key that was
/// not read. The table must outlive the reader.
class TomlReader {
 public:
  TomlReader(const toml::table& table, std::string path, std::string origin);

  bool has(std::string_view key) const;
  std::string text(std::string_view key, std::string fallback);
  std::vector<std::string> texts(std::string_view key);
  std::optional<TomlReader> table(std::string_view key);
  /// Returns an array of tables, [[key]].
  std::vector<TomlReader> tables(std::string_view key);
  /// Sets the number of steps that shares refer to, for this reader and tables read from it later.
  void share_steps(std::int64_t steps) { shared_steps_ = steps; }
  /// Sets the recorded recipes that names may refer to, for this reader and tables read from it
  /// later. `texts` must outlive the readers.
  void share_recipes(const std::map<std::string, std::string>& texts) { recipes_ = &texts; }
  bool has_recipe(const std::string& name) const {
    return recipes_ != nullptr && recipes_->count(name) != 0;
  }
  /// Returns the raw value, or null; marks the key as read.
  const toml::node* node(std::string_view key);

  /// Sets the member of a row to the value of its key, if present.
  template <class S>
  void read(const Field<S>& field, S& object) {
    const toml::node* const written = node(field.word);
    if (written == nullptr) return;
    const std::optional<FieldValue> value = value_of(*written);
    if (value && field.set(object, field.may_be_share ? without_share(*value) : *value)) return;
    refuse_value(field.word, field.is_text, field.accepted, field.names);
  }

  /// Throws Error if the table has keys that were not read.
  void finish() const;

  /// Like `refuse` for the value of a key; for a text, the message suggests the nearest of `names`.
  [[noreturn]] void refuse_value(std::string_view key, bool is_text, const std::string& accepted,
                                 const std::vector<std::string>& names) const;
  /// Throws InputError with `fields`, and with the place and the path of `key`: "'path.key' is
  /// ...".
  [[noreturn]] void refuse(std::string_view key, ErrorFields fields) const;
  /// Like `refuse`, for fields that are a sentence: "'path.key': 7 does not divide ...".
  [[noreturn]] void fail(std::string_view key, ErrorFields fields) const;

  /// Returns the location of `key`, or of the table if the key is absent.
  std::string where(std::string_view key) const;
  std::string where() const;
  /// Returns the dotted path of `key` from the top of the document.
  std::string path_of(std::string_view key) const;
  const toml::table& raw() const { return *table_; }

 private:
  /// Converts a share from 0 to 1 into steps: rounded to the nearest, at least
  /// one unless the share is 0.
  FieldValue without_share(const FieldValue& value) const;
  void known(std::string_view key);
  [[noreturn]] void wrong_type(std::string_view key, const std::string& accepted) const;

  const toml::table* table_;
  std::string path_;
  std::string origin_;
  std::vector<std::string> known_;
  std::optional<std::int64_t> shared_steps_;
  const std::map<std::string, std::string>* recipes_ = nullptr;
};

}  // namespace fp8lab
