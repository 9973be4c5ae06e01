// Texts that users give to a model: strings, or token ids from an external tokenizer.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/data/vocabulary.hpp"

namespace fp8lab {

/// Encodes byte-level text only: fp8lab.tokens encodes with a BPE. Precondition:
/// `vocabulary` outlives the reader.
class TextReader {
 public:
  TextReader(const Vocabulary& vocabulary, std::int64_t vocab_size)
      : vocabulary_(vocabulary), vocab_size_(vocab_size) {}

  /// Returns the tokens of a JSON string or of a list of ids. Throws Error that starts with
  /// `where` for a string that cannot be encoded, for an id outside the model's vocabulary,
  /// and for any other value.
  std::vector<std::int32_t> tokens(const nlohmann::json& value, const std::string& where) const;

 private:
  const Vocabulary& vocabulary_;
  std::int64_t vocab_size_;
};

}  // namespace fp8lab
