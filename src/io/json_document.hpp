// JSON files of other programs, read strictly.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fp8lab {

/// The first null byte, or npos. No JSON holds one; the parser takes it for the end of the text.
std::size_t find_null(std::string_view text);

/// Parses one JSON value. Throws Error naming `origin` and the byte for text
/// that is not JSON, for an object that has a key twice, and for values nested more than 64 deep.
nlohmann::json parse_json(std::string_view text, const std::string& origin);

/// parse_json of a file that must hold an object.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace fp8lab
