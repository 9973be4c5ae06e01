#include "src/config/reading/json_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/nearest_name.hpp"

namespace fp8lab {

using nlohmann::json;

JsonFields::JsonFields(const json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object.is_object()) throw InputError({.where = where_, .reason = "is no JSON object"});
}

const json& JsonFields::value(const std::string& key) {
  static const json kAbsent;
  known_.insert(key);
  const auto found = object_.find(key);
  return found == object_.end() ? kAbsent : *found;
}

bool JsonFields::has(const std::string& key) { return !value(key).is_null(); }

std::int64_t JsonFields::integer(const std::string& key, std::optional<std::int64_t> fallback,
                                 std::int64_t minimum, std::int64_t maximum) {
  if (!has(key) && fallback) return *fallback;
  if (!has(key)) fail(key, {.reason = "is missing"});
  const json& field = value(key);
  const bool fits = field.is_number_unsigned()
                        ? field.get<std::uint64_t>() <= static_cast<std::uint64_t>(maximum)
                        : field.is_number_integer();
  if (!fits || field.get<std::int64_t>() < minimum || field.get<std::int64_t>() > maximum) {
    fail(key, {.found = field.dump().substr(0, 80),
               .accepted = fmt::format("an integer from {} to {}", minimum, maximum)});
  }
  return field.get<std::int64_t>();
}

double JsonFields::number(const std::string& key, std::optional<double> fallback, double minimum,
                          double maximum) {
  if (!has(key) && fallback) return *fallback;
  if (!has(key)) fail(key, {.reason = "is missing"});
  const json& field = value(key);
  const double number = field.is_number() ? field.get<double>() : std::nan("");
  if (!(number >= minimum && number <= maximum)) {
    fail(key, {.found = field.dump().substr(0, 80),
               .accepted = fmt::format("a number from {} to {}", minimum, maximum)});
  }
  return number;
}

bool JsonFields::boolean(const std::string& key, bool fallback) {
  if (!has(key)) return fallback;
  const json& field = value(key);
  if (!field.is_boolean()) {
    fail(key, {.found = field.dump().substr(0, 80), .accepted = "true, false"});
  }
  return field.get<bool>();
}

std::string JsonFields::text(const std::string& key, const std::string& fallback) {
  if (!has(key)) return fallback;
  const json& field = value(key);
  if (!field.is_string()) {
    fail(key, {.found = field.dump().substr(0, 80), .accepted = "a string"});
  }
  return field.get<std::string>();
}

void JsonFields::require(const std::string& key, const json& accepted, const std::string& remedy) {
  if (!has(key) || value(key) == accepted) return;
  fail(key, {.verb = "=",
             .found = value(key).dump().substr(0, 80),
             .reason = "is not supported",
             .accepted = accepted.dump(),
             .remedy = remedy});
}

void JsonFields::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) known_.emplace(key);
}

void JsonFields::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (known_.count(key) == 0) {
      std::vector<std::string> names(known_.begin(), known_.end());
      std::sort(names.begin(), names.end());
      fail(key.substr(0, 200), {.noun = "unknown field",
                                .nearest = did_you_mean(key, names),
                                .remedy = "it may change what the model computes"});
    }
  }
}

void JsonFields::fail(const std::string& key, ErrorFields fields) const {
  fields.where = where_;
  fields.key = key;
  throw InputError(std::move(fields));
}

}  // namespace fp8lab
