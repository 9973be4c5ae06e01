// Strict reading of JSON objects: the counterpart of TomlReader for files of other programs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "emulation/base/input_error.hpp"

namespace fp8lab {

/// The fields of one object. A null counts as absent. Getters throw Error that names the field if
/// its value does not fit, and mark the field as read; finish() then rejects every field that was
/// not read. The object must outlive the reader.
class JsonFields {
 public:
  /// `where` begins every message: the file, and the object within it.
  JsonFields(const nlohmann::json& object, std::string where);

  /// Returns true if the field is there and not null.
  bool has(const std::string& key);
  /// Returns true if the field is there, be it null.
  bool is_present(const std::string& key) const { return object_.contains(key); }
  /// Reads an integer. Without a fallback the field is required.
  std::int64_t integer(const std::string& key, std::optional<std::int64_t> fallback,
                       std::int64_t minimum, std::int64_t maximum);
  double number(const std::string& key, std::optional<double> fallback, double minimum,
                double maximum);
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  /// Returns the value, or null if it is absent.
  const nlohmann::json& value(const std::string& key);
  /// Throws InputError unless the field is absent or equal to `accepted`; `remedy` says what to do.
  void require(const std::string& key, const nlohmann::json& accepted,
               const std::string& remedy = {});
  void ignore(std::initializer_list<std::string_view> keys);
  void finish() const;

  /// Throws InputError with `fields`, and with the place and `key`: "where: 'key' is ...".
  [[noreturn]] void fail(const std::string& key, ErrorFields fields) const;

 private:
  const nlohmann::json& object_;
  std::string where_;
  std::unordered_set<std::string> known_;
};

}  // namespace fp8lab
