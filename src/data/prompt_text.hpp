// Texts that users give to a model: strings, or token ids that somebody else's tokenizer made.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// Only the byte-level vocabulary can be encoded here: merges of a BPE are the business of
/// fp8lab.tokens. `vocabulary` must outlive the reader.
class TextReader {
 public:
  TextReader(const Vocabulary& vocabulary, std::int64_t vocab_size)
      : vocabulary_(vocabulary), vocab_size_(vocab_size) {}

  /// Tokens of a JSON string or list of ids. Throws Error that starts with `where` for a string
  /// that cannot be encoded, for an id that is none of the model's, and for anything else.
  std::vector<std::int32_t> tokens(const nlohmann::json& value, const std::string& where) const;

 private:
  const Vocabulary& vocabulary_;
  std::int64_t vocab_size_;
};

}  // namespace fp8lab
