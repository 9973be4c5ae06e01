#include "src/io/json_document.hpp"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

#include "emulation/base/input_error.hpp"
#include "src/io/files/atomic_file.hpp"

namespace fp8lab {

using nlohmann::json;

namespace {

/// Limit of the nesting: deeper values would exhaust the stack of code that
/// prints or compares them.
constexpr int kDeepestJson = 64;

}  // namespace

std::size_t find_null(std::string_view text) { return text.find('\0'); }

json parse_json(std::string_view text, const std::string& origin) {
  if (const std::size_t null = find_null(text); null != std::string_view::npos) {
    throw InputError(
        {.where = origin, .reason = fmt::format("malformed JSON at byte {}", null + 1)});
  }
  std::vector<std::unordered_set<std::string>> keys;  // keys of the enclosing objects
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (depth > kDeepestJson) {
      throw InputError(
          {.where = origin,
           .reason = fmt::format("lists and objects in one another, more than {}", kDeepestJson)});
    }
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw InputError({.where = origin,
                          .noun = "key",
                          .key = key.substr(0, 200),
                          .reason = "is given twice"});
      }
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    throw InputError(
        {.where = origin, .reason = fmt::format("malformed JSON at byte {}", error.byte)});
  } catch (const json::exception&) {
    throw InputError({.where = origin, .reason = "malformed JSON: a number is out of range"});
  }
}

json read_json_object(const std::filesystem::path& path) {
  json document = parse_json(read_file(path), path.string());
  if (!document.is_object())
    throw InputError({.where = path.string(), .reason = "is no JSON object"});
  return document;
}

}  // namespace fp8lab
