// Records of JSON lines. README.md of this folder lists the accepted forms.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// A piece of text that is trained on or not.
struct Piece {
  std::string text;
  bool trained = true;
};

/// A document as text, in order; pieces may be empty.
using Passage = std::vector<Piece>;

/// Returns "Question: ...
/// Answer: " followed by the answer; only the answer is trained on.
Passage question_answer(const std::string& question, const std::string& answer);

/// Returns `line` without leading byte order marks.
std::string_view without_byte_order_mark(std::string_view line);

/// Returns true if the line is a record with only the key `text`, all of which is trained on; false
/// for lines that parse_record refuses.
bool is_running_text(std::string_view line);

/// Parses one line as a document. Chats are written "role: content
/// ", without the last line end. The assistant's contents and the line ends after them are
/// trained on, except for messages with `weight` 0 or `train` false. Throws Error that starts
/// with `where` for anything else.
Passage parse_record(std::string_view line, const std::string& where);

/// The messages of {"messages": [...]} (or "conversations") in the same form, with "assistant: "
/// behind them. Throws Error with `where` for what is none, and where the assistant has the last
/// word.
std::string chat_question(const nlohmann::json& object, const std::string& where);

}  // namespace fp8lab
