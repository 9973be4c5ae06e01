#include "src/data/documents.hpp"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "emulation/base/error.hpp"
#include "src/data/arithmetic.hpp"
#include "src/data/tokenizer.hpp"
#include "src/io/atomic_file.hpp"
#include "src/io/json_document.hpp"
#include "src/io/text_lines.hpp"

namespace fp8lab {
namespace {

struct Passage {
  std::string prompt;
  std::string response;
};

Document to_document(const Passage& passage, DataForm form) {
  Document document;
  document.tokens.push_back(ByteTokenizer::kBegin);
  const auto append = [&](const std::string& text) {
    const auto tokens = ByteTokenizer::encode(text);
    document.tokens.insert(document.tokens.end(), tokens.begin(), tokens.end());
  };
  append(passage.prompt);
  if (form == DataForm::prompt_response) {
    document.prompt_length = static_cast<std::int64_t>(document.tokens.size());
    document.reference = passage.response;
  }
  append(passage.response);
  document.tokens.push_back(ByteTokenizer::kEnd);
  return document;
}

Passage question_answer(const std::string& question, const std::string& answer) {
  return {"Question: " + question + "\nAnswer: ", answer};
}

std::vector<Passage> read_text(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  TextLines lines(text);
  std::vector<Passage> passages;
  std::string document;
  const auto finish = [&] {
    if (!document.empty()) passages.push_back({"", document});
    document.clear();
  };
  for (std::string_view line; lines.next(line);) {
    if (is_blank(line)) {
      finish();
    } else {
      document.append(document.empty() ? "" : "\n").append(line);
    }
  }
  finish();
  return passages;
}

std::string string_field(const nlohmann::json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    throw Error(fmt::format("{}: expected a string in \"{}\"", where, key));
  }
  return found->get<std::string>();
}

/// Everything before the last assistant message is the prompt.
Passage messages_passage(const nlohmann::json& messages, const std::string& where) {
  if (!messages.is_array() || messages.empty()) {
    throw Error(fmt::format("{}: \"messages\" must be a non-empty array", where));
  }
  Passage passage;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) throw Error(fmt::format("{}: message {} is no object", where, i));
    const std::string role = string_field(messages[i], "role", where);
    const std::string content = string_field(messages[i], "content", where);
    if (i + 1 < messages.size()) {
      passage.prompt += fmt::format("{}: {}\n", role, content);
    } else if (role == "assistant") {
      passage.prompt += "assistant: ";
      passage.response = content;
    } else {
      throw Error(fmt::format("{}: the last message must be the assistant's", where));
    }
  }
  return passage;
}

Passage parse_line(std::string_view line, const std::string& where) {
  nlohmann::json object = parse_json(line, where);
  if (!object.is_object()) throw Error(fmt::format("{}: expected a JSON object", where));
  if (object.contains("question")) {
    return question_answer(string_field(object, "question", where),
                           string_field(object, "answer", where));
  }
  if (object.contains("messages")) return messages_passage(object["messages"], where);
  if (object.contains("text")) return {"", string_field(object, "text", where)};
  throw Error(
      fmt::format("{}: accepted are {{question, answer}}, {{messages}} and {{text}}", where));
}

std::vector<Passage> read_json_lines(const std::filesystem::path& path, DataForm form) {
  const std::string text = read_file(path);
  TextLines lines(text);
  std::vector<Passage> passages;
  for (std::string_view line; lines.next(line);) {
    if (is_blank(line)) continue;
    const std::string where = fmt::format("{}:{}", path.string(), lines.number());
    passages.push_back(parse_line(line, where));
    if (form == DataForm::prompt_response && passages.back().prompt.empty()) {
      throw Error(fmt::format("{}: prompt_response needs a question or messages", where));
    }
  }
  return passages;
}

std::vector<Passage> generate_passages(const SourceConfig& source) {
  std::vector<Passage> passages;
  for (const WordProblem& problem :
       generate_arithmetic(source.corpus_seed, source.problems, source.families, source.held_out)) {
    passages.push_back(question_answer(problem.question, problem.solution));
  }
  return passages;
}

std::vector<Passage> read_passages(const SourceConfig& source, DataForm form) {
  if (source.kind == DataKind::arithmetic) return generate_passages(source);
  FP8LAB_ASSERT(source.kind != DataKind::tokens);
  std::vector<Passage> passages;
  for (const std::filesystem::path& path : source.paths) {
    const bool text = source.kind == DataKind::text;
    if (text && form == DataForm::prompt_response) {
      throw Error(
          fmt::format("{}: plain text has no prompts; prompt_response needs jsonl", path.string()));
    }
    const std::vector<Passage> more = text ? read_text(path) : read_json_lines(path, form);
    passages.insert(passages.end(), more.begin(), more.end());
  }
  return passages;
}

}  // namespace

std::vector<Document> load_documents(const SourceConfig& source, DataForm form) {
  const std::vector<Passage> passages = read_passages(source, form);
  const auto count = static_cast<double>(passages.size());
  const auto first = static_cast<std::size_t>(std::floor(source.range_begin * count));
  const auto last = static_cast<std::size_t>(std::floor(source.range_end * count));
  if (first >= last) {
    throw Error(fmt::format("{}: no documents in range [{}, {}) of {}",
                            source.paths.empty() ? "generator" : source.paths.front().string(),
                            source.range_begin, source.range_end, passages.size()));
  }
  std::vector<Document> documents;
  documents.reserve(last - first);
  for (std::size_t i = first; i < last; ++i) documents.push_back(to_document(passages[i], form));
  return documents;
}

std::string final_answer(const std::string& solution) {
  const std::size_t mark = solution.rfind("####");
  if (mark == std::string::npos) return "";
  std::string answer;
  for (const char c : solution.substr(mark + 4)) {
    if (c == '\n') break;
    if (c != ' ' && c != ',' && c != '\r') answer.push_back(c);
  }
  return answer;
}

}  // namespace fp8lab
