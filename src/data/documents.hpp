// Documents of a stage: tokens, and which of them are trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

/// [begin] prompt response [end]. `prompt_length` counts the begin token and everything up
/// to the last response. These tokens are not targets, except those that `loss_mask` marks.
/// It is 1 for running text.
struct Document {
  std::vector<std::int32_t> tokens;
  std::int64_t prompt_length = 1;
  std::vector<std::byte> loss_mask;  ///< as in DocumentView; empty: everything after the prompt
  std::string reference;             ///< prompt_response: expected response, for exact match
};

/// Reads or generates the documents of a source that is not tokenized, in file order. Throws Error
/// with file:line for malformed JSON or unusable text, and if the chosen range is empty.
std::vector<Document> load_documents(const SourceConfig& source, DataForm form);

/// Returns the final answer of a solution: the text after the last "####", without spaces and
/// commas; empty if there is none.
std::string final_answer(const std::string& solution);

}  // namespace fp8lab
