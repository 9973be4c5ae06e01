// Strict reading of TOML: every key must be asked for, every value must have the right type and
// range, and every complaint names file, line, column, key and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <toml++/toml.h>

#include "emulation/spec/fields.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/config/nearest_name.hpp"

namespace fp8lab {

/// Source names of values that come from an assignment start with this; such values have no line.
inline constexpr std::string_view kAssignmentOrigin = "assignment ";

/// Parts of a key, and lists and inline tables in one another: more would exhaust the stack of what
/// goes through a document.
inline constexpr std::size_t kDeepestToml = 32;

/// Throws Error with file:line:column for text beyond kDeepestToml. What is no TOML passes.
void check_toml_depth(const std::string& text, const std::string& origin);

/// Parses a document; `origin` is the file name of the messages. Throws Error with
/// file:line:column.
toml::table parse_toml(const std::string& text, const std::string& origin);

/// "file:line:column" of a node, or the assignment it comes from; `origin` when it has no source.
std::string source_location(const toml::node& node, const std::string& origin);

/// "a, b, c".
std::string join_names(const std::vector<std::string>& names);

/// The value of a node; nothing for tables, dates and lists that hold some.
std::optional<FieldValue> value_of(const toml::node& node);

/// Sets a key of `table`; messages about it name the assignment `from`, "scale=0.1".
void assign_integer(toml::table& table, const std::string& key, std::int64_t value,
                    const std::string& from);

/// `steps` times `factor`, rounded to the nearest, at least 1.
std::int64_t steps_times(std::int64_t steps, double factor);

/// One table of a document. The getters return the fallback when the key is absent, throw Error
/// when its value does not fit, and remember the key; finish() then rejects every key that no
/// getter asked for. The table must outlive the reader.
class TomlReader {
 public:
  TomlReader(const toml::table& table, std::string path, std::string origin);

  bool has(std::string_view key) const;
  std::string text(std::string_view key, std::string fallback);
  std::vector<std::string> texts(std::string_view key);
  std::optional<TomlReader> table(std::string_view key);
  /// An array of tables, [[key]].
  std::vector<TomlReader> tables(std::string_view key);
  /// What shares are of, here and in the tables read from here on.
  void share_steps(std::int64_t steps) { shared_steps_ = steps; }
  /// Names that stand for recorded recipes, here and in the tables read from here on. `texts` must
  /// outlive the readers.
  void share_recipes(const std::map<std::string, std::string>& texts) { recipes_ = &texts; }
  bool has_recipe(const std::string& name) const {
    return recipes_ != nullptr && recipes_->count(name) != 0;
  }
  /// The raw value, or null; counts as asked for.
  const toml::node* node(std::string_view key);

  /// Sets the member of a row to the value of its key, if there is one.
  template <class S>
  void read(const Field<S>& field, S& object) {
    const toml::node* const written = node(field.word);
    if (written == nullptr) return;
    const std::optional<FieldValue> value = value_of(*written);
    if (value && field.set(object, field.may_be_share ? without_share(*value) : *value)) return;
    refuse_value(field.word, field.is_text, field.accepted, field.names);
  }

  /// Rejects keys that were never asked for.
  void finish() const;

  /// Throws Error "where: 'path.key' is WHAT; accepted: ACCEPTED".
  [[noreturn]] void refuse(std::string_view key, const std::string& what,
                           const std::string& accepted) const;
  /// The same of the value of a key; of a text that stands for something, with the nearest name.
  [[noreturn]] void refuse_value(std::string_view key, bool is_text, const std::string& accepted,
                                 const std::vector<std::string>& names) const;
  /// Throws Error "where: 'path.key': MESSAGE".
  [[noreturn]] void fail(std::string_view key, const std::string& message) const;

  /// Location of `key`, or of the table when the key is absent.
  std::string where(std::string_view key) const;
  std::string where() const;
  /// Dotted path of `key` from the top of the document.
  std::string path_of(std::string_view key) const;
  const toml::table& raw() const { return *table_; }

 private:
  /// A number from 0 to 1 as steps: the nearest, and of more than nothing at least one.
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
