// Maps token ids to bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fp8lab {

/// The bytes of every token, and the special tokens.
class Vocabulary {
 public:
  /// Returns the byte-level vocabulary: ids are bytes, followed by begin, end and padding.
  static Vocabulary bytes();
  /// Returns a vocabulary of `size` ids without text. `tokenizer` is empty if it is unknown.
  static Vocabulary opaque(std::int64_t size, std::int32_t begin, std::int32_t end,
                           std::string tokenizer);
  /// Reads token_bytes.json, which fp8lab.tokens writes beside its shards (src/data/README.md).
  /// Throws Error with the file for malformed input.
  static Vocabulary read(const std::filesystem::path& file);

  std::int64_t size() const { return size_; }
  std::int32_t begin() const { return begin_; }      ///< first token of every document; -1: none
  std::int32_t end() const { return end_; }          ///< last token of every document; -1: none
  std::int32_t padding() const { return padding_; }  ///< fills a sequence; never trained on
  bool has_text() const { return !texts_.empty(); }
  /// Returns "bytes", the 16 digits of the tokenizer's hash, or an empty text if it is unknown.
  const std::string& tokenizer() const { return tokenizer_; }

  /// Returns the bytes of the tokens; skips special tokens and unused ids of a padded vocabulary.
  /// Precondition: has_text().
  std::string decode(const std::vector<std::int32_t>& tokens) const;
  /// Like decode, but with every token, for people to read: special tokens as the tokenizer spells
  /// them, and others without text as "<id 5>". Precondition: has_text().
  std::string spell(const std::vector<std::int32_t>& tokens) const;

 private:
  std::int64_t size_ = 0;
  std::int32_t begin_ = -1, end_ = -1, padding_ = 0;
  std::string tokenizer_;
  std::vector<std::string> texts_;
  std::map<std::int32_t, std::string> specials_;  ///< spellings of special tokens, if known
};

}  // namespace fp8lab
