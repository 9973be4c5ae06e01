#include "src/data/prompt_text.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/data/tokenizer.hpp"

namespace fp8lab {

std::vector<std::int32_t> TextReader::tokens(const nlohmann::json& value,
                                             const std::string& where) const {
  if (value.is_string()) {
    if (vocabulary_.tokenizer() != "bytes") {
      throw InputError(
          {.reason = fmt::format("{} is text, and the vocabulary is not of bytes", where),
           .accepted = "token ids, which python3 -m fp8lab.tokens --questions writes"});
    }
    return ByteTokenizer::encode(value.get_ref<const std::string&>());
  }
  if (!value.is_array()) throw Error(where + " is neither a string nor a list of token ids");
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : value) {
    // "-0" is an integer with a sign.
    const bool is_zero = id.is_number_integer() && id == 0;
    if (!is_zero && (!id.is_number_unsigned() ||
                     id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_size_))) {
      throw Error(
          fmt::format("{} holds {}, which is no token of {}", where, id.dump(), vocab_size_));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

}  // namespace fp8lab
