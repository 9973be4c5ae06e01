#include "src/data/json_records.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {

using nlohmann::json;

namespace {

constexpr const char* kByTemplate =
    "accepted: shards of `python3 -m fp8lab.tokens` with the model's chat template";

struct Message {
  std::string role;
  std::string content;
  bool trained = false;
};

bool is_given(const json& object, const char* key) {
  return object.contains(key) && !object[key].is_null();
}

bool is_filled(const json& object, const char* key) {
  return is_given(object, key) && !(object[key].is_string() && object[key] == "");
}

std::string string_field(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    throw InputError({.where = where, .reason = fmt::format("expected a string in \"{}\"", key)});
  }
  return found->get<std::string>();
}

/// Reads `weight` (0 or 1) or `train` (false or true); returns nothing if the key is absent.
std::optional<bool> trained_by(const json& message, const char* key, bool is_weight,
                               const std::string& where) {
  if (!is_given(message, key)) return std::nullopt;
  const json& value = message[key];
  if (is_weight ? value.is_number() && (value == 0 || value == 1) : value.is_boolean()) {
    return is_weight ? value == 1 : value.get<bool>();
  }
  throw InputError({.where = where,
                    .reason = fmt::format("\"{}\"", key),
                    .accepted = is_weight ? "0 and 1" : "false and true"});
}

bool is_trained(const json& message, bool assistant, const std::string& where) {
  // Keys that other programs use to exclude a message from training.
  for (const char* key : {"loss", "train_on_turn"}) {
    if (!is_given(message, key)) continue;
    throw InputError({.where = where,
                      .reason = fmt::format("\"{}\" is not read", key),
                      .accepted = "\"weight\" or \"train\""});
  }
  const std::optional<bool> weight = trained_by(message, "weight", true, where);
  const std::optional<bool> train = trained_by(message, "train", false, where);
  if (weight && train && *weight != *train) {
    throw InputError({.where = where, .reason = "\"weight\" and \"train\" say different things"});
  }
  const bool chosen = weight ? *weight : train.value_or(assistant);
  if (chosen && !assistant) {
    throw InputError(
        {.where = where, .reason = "only messages of the assistant can be trained on"});
  }
  return chosen;
}

/// Throws if a whole record has a weight other than 1 or is excluded from training.
void require_trained_record(const json& object, const std::string& where) {
  const auto require = [&](const char* key, bool fits, const char* accepted) {
    if (!is_given(object, key) || fits) return;
    throw InputError({.where = where,
                      .reason = fmt::format("\"{}\" of a whole record", key),
                      .accepted = fmt::format("{}, or the key in a message", accepted)});
  };
  const auto is = [&](const char* key, const json& value) {
    return is_given(object, key) && object[key].is_boolean() == value.is_boolean() &&
           object[key] == value;
  };
  require("weight", is("weight", 1), "1");
  require("train", is("train", true), "true");
}

/// Throws for a role that no published chat template has, unless the message says that it is not
/// trained on: a mistyped "assistant" would silently be left out of training.
void require_known_role(const Message& message, bool is_stated, const std::string& where) {
  // As ROLES of fp8lab.tokens.documents.
  constexpr std::array<const char*, 9> kRoles = {"system",    "developer",   "user",
                                                 "assistant", "tool",        "function",
                                                 "ipython",   "observation", "environment"};
  if (std::find(kRoles.begin(), kRoles.end(), message.role) != kRoles.end()) return;
  if (is_stated && !message.trained) return;
  throw InputError(
      {.where = where,
       .reason = fmt::format("role '{}'", message.role),
       .accepted = fmt::format("{}; others with \"train\": false", fmt::join(kRoles, ", "))});
}

/// Maps ShareGPT's role names, of messages with `from` and `value`.
std::string sharegpt_role(const std::string& name, const std::string& where) {
  constexpr std::array<std::pair<const char*, const char*>, 5> kRoles = {
      {{"human", "user"},
       {"gpt", "assistant"},
       {"system", "system"},
       {"user", "user"},
       {"assistant", "assistant"}}};
  std::string known;
  for (const auto& [from, role] : kRoles) {
    if (name == from) return role;
    known += (known.empty() ? "" : ", ") + std::string(from);
  }
  throw InputError({.where = where, .reason = fmt::format("from '{}'", name), .accepted = known});
}

Message read_message(const json& message, bool sharegpt, const std::string& where) {
  if (!message.is_object()) throw Error(where + " is no object");
  Message read;
  if (sharegpt && message.contains("from")) {
    read.role = sharegpt_role(string_field(message, "from", where), where);
    read.content = string_field(message, "value", where);
  } else {
    read.role = string_field(message, "role", where);
    if (is_given(message, "tool_calls") && !message["tool_calls"].empty()) {
      throw InputError(
          {.where = where,
           .reason = fmt::format("calls tools, for which the byte-level form has no words; {}",
                                 kByTemplate)});
    }
    read.content = string_field(message, "content", where);
  }
  read.trained = is_trained(message, read.role == "assistant", where);
  require_known_role(read, is_given(message, "weight") || is_given(message, "train"), where);
  return read;
}

Passage chat(const std::vector<Message>& messages, const std::string& where) {
  Passage passage;
  bool answers = false, trained = false;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool last = i + 1 == messages.size();
    passage.push_back({message.role + ": ", false});
    passage.push_back({message.content + (last ? "" : "\n"), message.trained});
    answers = answers || message.role == "assistant";
    trained = trained || message.trained;
  }
  if (!trained) {
    throw InputError({.where = where,
                      .reason = fmt::format("no message {}, so nothing to train on",
                                            answers ? "that is trained on" : "of the assistant")});
  }
  return passage;
}

std::vector<Message> message_list(const json& object, const char* key, const std::string& where) {
  const json& list = object[key];
  if (!list.is_array() || list.empty()) {
    throw InputError(
        {.where = where, .reason = fmt::format("\"{}\" must be a non-empty list", key)});
  }
  if (is_given(object, "tools") && !object["tools"].empty()) {
    throw InputError(
        {.where = where,
         .reason = fmt::format("has tools, for which the byte-level form has no words; {}",
                               kByTemplate)});
  }
  std::vector<Message> messages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    messages.push_back(read_message(list[i], std::string_view(key) == "conversations",
                                    fmt::format("{}: message {}", where, i)));
  }
  return messages;
}

Passage read_messages(const json& object, const char* key, const std::string& where) {
  return chat(message_list(object, key, where), where);
}

/// Reads an Alpaca record: an instruction, an optional input below it, and the output.
Passage read_instruction(const json& object, const std::string& where) {
  if (is_given(object, "history") && !object["history"].empty()) {
    throw InputError(
        {.where = where, .reason = "\"history\" is not read", .accepted = "{messages}"});
  }
  std::vector<Message> messages;
  if (is_filled(object, "system")) {
    messages.push_back({"system", string_field(object, "system", where)});
  }
  std::string user = string_field(object, "instruction", where);
  if (is_filled(object, "input")) user += "\n" + string_field(object, "input", where);
  messages.push_back({"user", user});
  messages.push_back({"assistant", string_field(object, "output", where), true});
  return chat(messages, where);
}

}  // namespace

Passage question_answer(const std::string& question, const std::string& answer) {
  return {{"Question: " + question + "\nAnswer: ", false}, {answer}};
}

std::string chat_question(const json& object, const std::string& where) {
  const char* const key = is_given(object, "messages") ? "messages" : "conversations";
  if (!is_given(object, key)) throw InputError({.where = where, .reason = "expected \"messages\""});
  std::string text;
  const std::vector<Message> messages = message_list(object, key, where);
  for (const Message& message : messages) text += message.role + ": " + message.content + "\n";
  if (messages.back().role == "assistant") {
    throw InputError({.where = where,
                      .reason = "the last message is the assistant's, so nothing is asked",
                      .accepted = "messages up to one of another role"});
  }
  return text + "assistant: ";
}

std::string_view without_byte_order_mark(std::string_view line) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  while (line.substr(0, kMark.size()) == kMark) line.remove_prefix(kMark.size());
  return line;
}

bool is_running_text(std::string_view line) {
  try {
    const Passage passage = parse_record(line, "");
    return passage.size() == 1 && passage.front().trained;
  } catch (const Error&) {
    return false;  // the code that reads the record reports the error
  }
}

Passage parse_record(std::string_view line, const std::string& where) {
  const json object = parse_json(line, where);
  if (!object.is_object()) throw InputError({.where = where, .reason = "expected an object"});
  const auto given = [&](const char* key) { return is_given(object, key); };
  const auto text = [&](const char* key) { return string_field(object, key, where); };
  require_trained_record(object, where);
  if (given("question")) return question_answer(text("question"), text("answer"));
  if (given("messages")) return read_messages(object, "messages", where);
  if (given("conversations")) return read_messages(object, "conversations", where);
  if (given("prompt") && given("completion")) {
    return {{text("prompt"), false}, {text("completion")}};
  }
  if (given("instruction") && given("output")) return read_instruction(object, where);
  if (given("text")) return {{text("text")}};
  throw InputError({.where = where,
                    .accepted = "{question, answer}, {messages}, {conversations}, {prompt, "
                                "completion}, {instruction, output} and {text}"});
}

}  // namespace fp8lab
