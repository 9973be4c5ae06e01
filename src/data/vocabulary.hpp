// What token ids mean as bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fp8lab {

/// The bytes of every token, and the tokens with a meaning of their own.
class Vocabulary {
 public:
  /// The byte-level tokenizer: ids are bytes, then begin, end and padding.
  static Vocabulary bytes();
  /// `size` ids without text. `tokenizer` is empty when nobody says which one made them.
  static Vocabulary opaque(std::int64_t size, std::int32_t begin, std::int32_t end,
                           std::string tokenizer);
  /// Reads token_bytes.json, as fp8lab.tokens writes it beside its shards (src/data/README.md).
  /// Throws Error with the file for everything malformed.
  static Vocabulary read(const std::filesystem::path& file);

  std::int64_t size() const { return size_; }
  std::int32_t begin() const { return begin_; }      ///< first token of every document; -1: none
  std::int32_t end() const { return end_; }          ///< last token of every document; -1: none
  std::int32_t padding() const { return padding_; }  ///< fills a sequence; never trained on
  bool has_text() const { return !texts_.empty(); }
  /// "bytes", the 16 digits of the tokenizer's hash, or empty when it is not known.
  const std::string& tokenizer() const { return tokenizer_; }

  /// Bytes of the tokens; specials and unused ids of a padded vocabulary are dropped. has_text()
  /// must hold.
  std::string decode(const std::vector<std::int32_t>& tokens) const;

 private:
  std::int64_t size_ = 0;
  std::int32_t begin_ = -1, end_ = -1, padding_ = 0;
  std::string tokenizer_;
  std::vector<std::string> texts_;
};

}  // namespace fp8lab
