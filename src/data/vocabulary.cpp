#include "src/data/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/data/tokenizer.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

constexpr const char* kSchema = "fp8lab-token-bytes-1";

/// Converts pairs of hexadecimal digits to bytes. Throws Error that starts with `where`.
std::string from_hex(const std::string& digits, const std::string& where) {
  std::string bytes(digits.size() / 2, '\0');
  bool valid = digits.size() % 2 == 0;
  for (std::size_t i = 0; valid && i < bytes.size(); ++i) {
    const char* const first = digits.data() + 2 * i;
    std::uint8_t value = 0;
    const auto [last, error] = std::from_chars(first, first + 2, value, 16);
    valid = error == std::errc{} && last == first + 2;
    bytes[i] = static_cast<char>(value);
  }
  if (!valid) throw InputError({.where = where, .key = digits, .reason = "is not hexadecimal"});
  return bytes;
}

std::int32_t read_id(const nlohmann::json& object, const char* key, std::int64_t size,
                     const std::string& where) {
  const auto found = object.find(key);
  const bool token = found != object.end() && found->is_number_unsigned() &&
                     found->get<std::uint64_t>() < static_cast<std::uint64_t>(size);
  const bool none = found != object.end() && found->is_number_integer() &&
                    !found->is_number_unsigned() && found->get<std::int64_t>() == -1;
  if (!token && !none) {
    throw InputError(
        {.where = where, .reason = fmt::format("\"{}\" is not a token of {} or -1", key, size)});
  }
  return found->get<std::int32_t>();
}

/// Reads the spellings of special tokens, which tables of earlier versions lack.
std::map<std::int32_t, std::string> read_specials(const nlohmann::json& object, std::int64_t size,
                                                  const std::string& where) {
  std::map<std::int32_t, std::string> specials;
  const auto found = object.find("special");
  if (found == object.end()) return specials;
  for (const auto& [key, spelling] : found->items()) {
    std::int32_t id = -1;
    const char* const end = key.data() + key.size();
    const auto [last, error] = std::from_chars(key.data(), end, id);
    const bool is_id = error == std::errc{} && last == end && id >= 0 && id < size;
    if (!found->is_object() || !is_id || !spelling.is_string()) {
      throw Error(
          fmt::format("{}: \"special\" does not map tokens of {} to their spelling", where, size));
    }
    specials[id] = spelling.get<std::string>();
  }
  return specials;
}

bool is_hash(const nlohmann::json& value) {
  return value.is_string() && value.get_ref<const std::string&>().size() == 16;
}

}  // namespace

Vocabulary Vocabulary::bytes() {
  Vocabulary vocabulary =
      opaque(ByteTokenizer::kVocabulary, ByteTokenizer::kBegin, ByteTokenizer::kEnd, "bytes");
  vocabulary.padding_ = ByteTokenizer::kPadding;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.texts_.emplace_back(1, static_cast<char>(byte));
  }
  return vocabulary;
}

Vocabulary Vocabulary::opaque(std::int64_t size, std::int32_t begin, std::int32_t end,
                              std::string tokenizer) {
  Vocabulary vocabulary;
  vocabulary.size_ = size;
  vocabulary.begin_ = begin;
  vocabulary.end_ = end;
  vocabulary.padding_ = std::max(end, 0);
  vocabulary.tokenizer_ = std::move(tokenizer);
  return vocabulary;
}

Vocabulary Vocabulary::read(const std::filesystem::path& file) {
  const std::string where = file.string();
  const nlohmann::json object = parse_json(read_file(file), where);
  if (!object.is_object() || object.value("schema", nlohmann::json()) != kSchema) {
    throw InputError(
        {.where = where, .reason = fmt::format("not a table of token bytes (schema {})", kSchema)});
  }
  const auto tokens = object.find("tokens");
  if (tokens == object.end() || !tokens->is_array() || tokens->empty()) {
    throw InputError({.where = where, .reason = "\"tokens\" must be a non-empty array"});
  }
  const auto size = static_cast<std::int64_t>(tokens->size());
  const auto hash = object.find("tokenizer_hash");
  if (hash == object.end() || !is_hash(*hash)) {
    throw InputError(
        {.where = where, .reason = "\"tokenizer_hash\" must be 16 hexadecimal digits"});
  }
  Vocabulary vocabulary = opaque(size, read_id(object, "begin", size, where),
                                 read_id(object, "end", size, where), hash->get<std::string>());
  for (const nlohmann::json& token : *tokens) {
    if (!token.is_string())
      throw InputError({.where = where, .reason = "\"tokens\" must be strings"});
    vocabulary.texts_.push_back(from_hex(token.get<std::string>(), where));
  }
  vocabulary.specials_ = read_specials(object, size, where);
  return vocabulary;
}

std::string Vocabulary::spell(const std::vector<std::int32_t>& tokens) const {
  FP8LAB_ASSERT(has_text());
  std::string text;
  for (const std::int32_t token : tokens) {
    const auto index = static_cast<std::size_t>(token);
    if (token >= 0 && index < texts_.size() && !texts_[index].empty()) {
      text += texts_[index];
    } else if (const auto special = specials_.find(token); special != specials_.end()) {
      text += special->second;
    } else {
      text += fmt::format("<id {}>", token);
    }
  }
  return text;
}

std::string Vocabulary::decode(const std::vector<std::int32_t>& tokens) const {
  FP8LAB_ASSERT(has_text());
  std::string text;
  for (const std::int32_t token : tokens) {
    const auto index = static_cast<std::size_t>(token);
    if (token >= 0 && index < texts_.size()) text += texts_[index];
  }
  return text;
}

}  // namespace fp8lab
