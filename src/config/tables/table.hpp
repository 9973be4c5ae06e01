// A TOML table as rows (emulation/spec/fields.hpp) and nested tables. Reading, writing and listing
// all use the same rows (src/config/README.md).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "emulation/spec/fields.hpp"
#include "src/config/key_help.hpp"
#include "src/config/reading/toml_reader.hpp"
#include "src/config/reading/toml_text.hpp"

namespace fp8lab {

/// Selects the keys of an object to write. Keys without effect are never written.
enum class Keys {
  complete,   ///< all keys that a file may contain
  canonical,  ///< the keys that are not at their default, so that new keys do not change the text
  hashed,     ///< the canonical keys that identify a configuration
};

inline std::string below(const std::string& path, const std::string& word) {
  return path.empty() ? word : path + "." + word;
}

/// Returns the values that absent keys of `fields` have in `object`: `defaults`, unless `object` is
/// of another kind, which inherits nothing.
template <class S>
S inherited(const Fields<S>& fields, const S& object, const S& defaults) {
  for (const Field<S>& field : fields) {
    if (field.selects && field.get(object) != field.get(defaults)) return S{};
  }
  return defaults;
}

/// Reads the keys into `object`. Precondition: `object` holds the values of absent keys.
template <class S>
void read_fields(TomlReader& reader, const Fields<S>& fields, S& object) {
  S kind = object;
  for (const Field<S>& field : fields) {
    if (field.selects) reader.read(field, kind);
  }
  object = inherited(fields, kind, object);
  for (const Field<S>& field : fields) reader.read(field, object);
  for (const Field<S>& field : fields) {
    if (!field.follows || reader.has(field.word)) continue;
    const FieldValue value = field.follows(object);
    if (field.set(object, value)) continue;
    reader.refuse(field.word, {.found = toml_text(value),
                               .reason = fmt::format(", by {}", field.follows_words),
                               .accepted = field.accepted});
  }
}

/// Refuses keys without effect and missing required keys. Afterwards keys without
/// effect are at their defaults.
template <class S>
void settle_fields(const TomlReader& reader, const Fields<S>& fields, S& object) {
  const S plain;
  for (const Field<S>& field : fields) {
    if (field.matters(object)) continue;
    const bool is_refused = reader.has(field.word) && !field.may_be_idle;
    if (is_refused) reader.fail(field.word, {.reason = "is for " + field.needs});
    field.copy(object, plain);
  }
  for (const Field<S>& field : fields) {
    if (!field.is_required || !field.matters(object) || reader.has(field.word)) continue;
    if (field.get(object) != field.get(plain)) continue;  // inherited
    reader.refuse(field.word, {.reason = "is missing", .accepted = field.accepted});
  }
}

/// Returns "key = value" lines. A value that no file can express is left out, as for an absent key.
template <class S>
std::string lines_of(const Fields<S>& fields, const S& object, const S& defaults, Keys keys) {
  std::string lines;
  const S usual = inherited(fields, object, defaults);
  for (const Field<S>& field : fields) {
    if (!field.matters(object) || (keys == Keys::hashed && !field.is_hashed)) continue;
    const FieldValue value = field.get(object);
    const FieldValue absent =
        field.follows ? field.follows(object) : field.get(field.selects ? defaults : usual);
    if (keys != Keys::complete && value == absent) continue;
    S trial = object;
    if (field.set(trial, value)) lines += fmt::format("{} = {}\n", field.word, toml_text(value));
  }
  return lines;
}

template <class S>
void list_fields(const Fields<S>& fields, const std::string& path, std::vector<KeyHelp>& out) {
  const S plain;
  for (const Field<S>& field : fields) {
    KeyHelp key{below(path, field.word), field.accepted, "", field.needs, field.help};
    key.names = field.names;
    S trial = plain;
    if (field.is_required) {
      key.usual = "required";
    } else if (!field.follows_words.empty()) {
      key.usual = "default " + field.follows_words;
    } else if (const FieldValue value = field.get(plain); field.set(trial, value)) {
      key.usual = "default " + toml_text(value);
    }
    out.push_back(std::move(key));
  }
}

/// A table, or a list of tables, nested in the table of S.
template <class S>
class InnerTable {
 public:
  explicit InnerTable(std::string name) : word(std::move(name)) {}
  virtual ~InnerTable() = default;
  virtual void read(TomlReader& outer, S& object) const = 0;
  /// Scales steps like scale_steps of the outer table.
  virtual void scale(toml::table&, const S&, double) const {}
  /// Returns the keys that are written in the outer table.
  virtual std::string lines(const S&, const S&, Keys) const { return {}; }
  /// Returns the nested tables, each with its heading.
  virtual std::string tables(const S& object, const S& defaults, const std::string& path,
                             Keys keys) const = 0;
  virtual void list(const std::string& path, std::vector<KeyHelp>& out) const = 0;

  const std::string word;
};

/// The rows of a table, its nested tables, and its checks.
template <class S>
struct Table {
  Fields<S> fields;
  std::vector<std::shared_ptr<const InnerTable<S>>> inner = {};
  /// Throws for errors that no single key shows; called after everything has been read.
  std::function<void(const TomlReader&, const S&)> check = {};
  /// The number of steps that shares in the inner tables refer to.
  std::int64_t S::*steps = nullptr;
};

/// Reads a table into `object`. Precondition: `object` holds the values of absent keys.
/// Throws Error for unknown keys.
template <class S>
void read_table(TomlReader& reader, const Table<S>& table, S& object) {
  read_fields(reader, table.fields, object);
  if (table.steps != nullptr) reader.share_steps(object.*table.steps);
  for (const auto& inner : table.inner) inner->read(reader, object);
  reader.finish();
  settle_fields(reader, table.fields, object);
  if (table.check) table.check(reader, object);
}

/// Writes every key that counts steps, multiplied by `factor`, into the document that `object` was
/// read from. Fractions are kept: they refer to the scaled steps. So is 0, which means never.
template <class S>
void scale_steps(const Table<S>& table, toml::table& document, const S& object, double factor) {
  for (const Field<S>& field : table.fields) {
    if (!field.counts_steps || !field.matters(object)) continue;
    const toml::node* const written = document.get(field.word);
    const auto steps = std::get<std::int64_t>(field.get(object));
    if (steps == 0 || (written != nullptr && written->is_floating_point())) continue;
    assign_integer(document, field.word, steps_times(steps, factor),
                   fmt::format("scale={}", factor));
  }
  for (const auto& inner : table.inner) inner->scale(document, object, factor);
}

/// Returns the table as text. `heading` is "[stages.eval]", or empty for a document. A table
/// without keys is left out unless `always` is set.
template <class S>
std::string table_text(const Table<S>& table, const S& object, const S& defaults,
                       const std::string& path, const std::string& heading, bool always,
                       Keys keys) {
  std::string text = lines_of(table.fields, object, defaults, keys);
  for (const auto& inner : table.inner) text += inner->lines(object, defaults, keys);
  if (!heading.empty() && (always || !text.empty())) text = "\n" + heading + "\n" + text;
  for (const auto& inner : table.inner) text += inner->tables(object, defaults, path, keys);
  return text;
}

template <class S>
void list_table(const Table<S>& table, const std::string& path, std::vector<KeyHelp>& out) {
  list_fields(table.fields, path, out);
  for (const auto& inner : table.inner) inner->list(path, out);
}

inline void list_heading(const std::string& path, const std::string& help, bool is_list,
                         std::vector<KeyHelp>& out) {
  KeyHelp heading;
  heading.path = fmt::format(fmt::runtime(is_list ? "[[{}]]" : "[{}]"), path);
  heading.help = help;
  heading.is_table = true;
  out.push_back(std::move(heading));
}

/// A member that has its own table.
template <class S, class T>
class MemberTable : public InnerTable<S> {
 public:
  MemberTable(std::string name, T S::*member, const Table<T>& (*rows)(), std::string help)
      : InnerTable<S>(std::move(name)), member_(member), rows_(rows), help_(std::move(help)) {}

  /// Sets how the defaults of its keys follow from the keys of the outer table.
  MemberTable&& starts(std::function<T(const S&)> start) && {
    start_ = std::move(start);
    return std::move(*this);
  }
  /// Sets the condition under which the table is written.
  MemberTable&& when(std::function<bool(const S&)> holds) && {
    condition_ = std::move(holds);
    return std::move(*this);
  }
  /// Writes the table even if all its keys have their defaults.
  MemberTable&& always() && {
    always_ = true;
    return std::move(*this);
  }

  void read(TomlReader& outer, S& object) const override {
    T inner = start_ ? start_(object) : object.*member_;
    if (std::optional<TomlReader> reader = outer.table(this->word)) {
      read_table(*reader, rows_(), inner);
    }
    object.*member_ = std::move(inner);
  }
  void scale(toml::table& outer, const S& object, double factor) const override {
    if (toml::table* const written = outer[this->word].as_table()) {
      return scale_steps(rows_(), *written, object.*member_, factor);
    }
    toml::table table;
    scale_steps(rows_(), table, object.*member_, factor);
    if (!table.empty()) outer.insert(this->word, std::move(table));
  }
  std::string tables(const S& object, const S& defaults, const std::string& path,
                     Keys keys) const override {
    if (condition_ && !condition_(object)) return {};
    const T start = start_ ? start_(object) : defaults.*member_;
    const std::string name = below(path, this->word);
    return table_text(rows_(), object.*member_, start, name, "[" + name + "]", always_, keys);
  }
  void list(const std::string& path, std::vector<KeyHelp>& out) const override {
    const std::string name = below(path, this->word);
    list_heading(name, help_, false, out);
    list_table(rows_(), name, out);
  }

 private:
  T S::*member_;
  const Table<T>& (*rows_)();
  std::string help_;
  std::function<T(const S&)> start_;
  std::function<bool(const S&)> condition_;
  bool always_ = false;
};

/// An optional member, present if its table is.
template <class S, class T>
class OptionalTable : public InnerTable<S> {
 public:
  OptionalTable(std::string name, std::optional<T> S::*member, const Table<T>& (*rows)(),
                std::string help, std::function<T(const S&)> start = {})
      : InnerTable<S>(std::move(name)),
        member_(member),
        rows_(rows),
        help_(std::move(help)),
        start_(std::move(start)) {}

  void read(TomlReader& outer, S& object) const override {
    std::optional<TomlReader> reader = outer.table(this->word);
    if (!reader) return;
    T inner = start(object);
    read_table(*reader, rows_(), inner);
    object.*member_ = std::move(inner);
  }
  void scale(toml::table& outer, const S& object, double factor) const override {
    if (!(object.*member_)) return;
    scale_steps(rows_(), *outer[this->word].as_table(), *(object.*member_), factor);
  }
  std::string tables(const S& object, const S&, const std::string& path, Keys keys) const override {
    if (!(object.*member_)) return {};
    const std::string name = below(path, this->word);
    return table_text(rows_(), *(object.*member_), start(object), name, "[" + name + "]", true,
                      keys);
  }
  void list(const std::string& path, std::vector<KeyHelp>& out) const override {
    const std::string name = below(path, this->word);
    list_heading(name, help_, false, out);
    list_table(rows_(), name, out);
  }

 private:
  T start(const S& object) const { return start_ ? start_(object) : T{}; }

  std::optional<T> S::*member_;
  const Table<T>& (*rows_)();
  std::string help_;
  std::function<T(const S&)> start_;
};

/// A member that is a list of tables, [[word]].
template <class S, class T>
class TableList : public InnerTable<S> {
 public:
  TableList(std::string name, std::vector<T> S::*member, const Table<T>& (*rows)(),
            std::string help)
      : InnerTable<S>(std::move(name)), member_(member), rows_(rows), help_(std::move(help)) {}

  void read(TomlReader& outer, S& object) const override {
    std::vector<T>& list = object.*member_;
    list.clear();
    for (TomlReader& reader : outer.tables(this->word)) {
      read_table(reader, rows_(), list.emplace_back());
    }
  }
  void scale(toml::table& outer, const S& object, double factor) const override {
    std::size_t index = 0;
    for (const T& element : object.*member_) {
      scale_steps(rows_(), *outer[this->word][index++].as_table(), element, factor);
    }
  }
  std::string tables(const S& object, const S&, const std::string& path, Keys keys) const override {
    const std::string name = below(path, this->word);
    std::string text;
    for (const T& element : object.*member_) {
      text += table_text(rows_(), element, T{}, name, "[[" + name + "]]", true, keys);
    }
    return text;
  }
  void list(const std::string& path, std::vector<KeyHelp>& out) const override {
    const std::string name = below(path, this->word);
    list_heading(name, help_, true, out);
    list_table(rows_(), name, out);
  }

 private:
  std::vector<T> S::*member_;
  const Table<T>& (*rows_)();
  std::string help_;
};

template <class T>
std::shared_ptr<const T> shared(T table) {
  return std::make_shared<const T>(std::move(table));
}

}  // namespace fp8lab
