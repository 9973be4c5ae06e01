// Strict reading of JSON files of other programs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fp8lab {

/// Returns the position of the first null byte, or npos. JSON contains none; the parser would take
/// it for the end of the text.
std::size_t find_null(std::string_view text);

/// Parses one JSON value. Throws Error that names `origin` and the byte for text that is not JSON,
/// for an object with duplicate keys, and for values nested more than 64 deep.
nlohmann::json parse_json(std::string_view text, const std::string& origin);

/// Calls parse_json for a file that must contain an object.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace fp8lab
