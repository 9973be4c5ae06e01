// Byte-level tokens: one token per byte, plus three special tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace fp8lab {

struct ByteTokenizer {
  static constexpr std::int32_t kBegin = 256;    ///< first token of every document
  static constexpr std::int32_t kEnd = 257;      ///< last token of every document
  static constexpr std::int32_t kPadding = 258;  ///< fills a sequence; never trained on
  static constexpr std::int64_t kVocabulary = 259;

  static std::vector<std::int32_t> encode(std::string_view text) {
    std::vector<std::int32_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
};

}  // namespace fp8lab
