// Documents of a stage: tokens and which of them are trained on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/config/config.hpp"

namespace fp8lab {

/// [begin] prompt response [end]. `prompt_length` counts begin and the prompt, up to the last
/// response: those tokens are no targets, but for what `loss_mask` says. It is 1 for running text.
struct Document {
  std::vector<std::int32_t> tokens;
  std::int64_t prompt_length = 1;
  std::vector<std::byte> loss_mask;  ///< as DocumentView's; empty: everything after the prompt
  std::string reference;             ///< prompt_response: the expected response, for exact match
};

/// Reads or generates the documents of one source that holds no tokens yet, in file order. Throws
/// Error with file:line for malformed JSON or text that is not usable, and when the chosen range is
/// empty.
std::vector<Document> load_documents(const SourceConfig& source, DataForm form);

/// The final answer of a solution: what follows the last "####", without spaces and commas; empty
/// if there is none.
std::string final_answer(const std::string& solution);

}  // namespace fp8lab
