// Records of JSON lines. README.md of this folder has the table of what is accepted.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// A stretch of text, trained on or not.
struct Piece {
  std::string text;
  bool trained = true;
};

/// A document as text, in order; empty pieces are allowed.
using Passage = std::vector<Piece>;

/// "Question: ...\nAnswer: " and the answer, which alone is trained on.
Passage question_answer(const std::string& question, const std::string& answer);

/// `line` without the byte order marks before it.
std::string_view without_byte_order_mark(std::string_view line);

/// Whether a line is a record of the key `text` alone, all of which is trained on. False for what
/// parse_record refuses.
bool is_running_text(std::string_view line);

/// One line as a document. Chats are written "role: content\n", without the last line's end; of
/// them the assistant's contents and the line ends after them are trained on, but those of messages
/// with `weight` 0 or `train` false. Throws Error with `where` for anything else.
Passage parse_record(std::string_view line, const std::string& where);

/// The messages of {"messages": [...]} (or "conversations") in the same form, with "assistant: "
/// behind them. Throws Error with `where` for what is none, and where the assistant has the last
/// word.
std::string chat_question(const nlohmann::json& object, const std::string& where);

}  // namespace fp8lab
