#include "src/data/documents.hpp"

#include <fmt/core.h>

#include <cmath>
#include <string_view>

#include "emulation/base/error.hpp"
#include "emulation/base/input_error.hpp"
#include "src/data/arithmetic.hpp"
#include "src/data/json_records.hpp"
#include "src/data/tokenizer.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/text_lines.hpp"

namespace fp8lab {
namespace {

/// Sets a loss mask if the trained tokens are not simply everything after the prompt:
/// answers in several turns.
void set_loss_mask(Document& document, const std::vector<bool>& trained) {
  bool differs = false;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    differs = differs || trained[i] != (static_cast<std::int64_t>(i) >= document.prompt_length);
  }
  if (!differs) return;
  document.loss_mask.assign((trained.size() + 7) / 8, std::byte{0});
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (trained[i]) document.loss_mask[i / 8] |= std::byte{1} << (i % 8);
  }
}

/// Encodes [begin] pieces [end]; the end token is trained on if the last piece is.
Document to_document(const Passage& passage, DataForm form) {
  Document document;
  std::vector<bool> trained{false};
  document.tokens.push_back(ByteTokenizer::kBegin);
  for (const Piece& piece : passage) {
    const auto tokens = ByteTokenizer::encode(piece.text);
    const bool learned = piece.trained || form == DataForm::running_text;
    if (learned && form == DataForm::prompt_response) {
      document.prompt_length = static_cast<std::int64_t>(document.tokens.size());
      document.reference = piece.text;
    }
    document.tokens.insert(document.tokens.end(), tokens.begin(), tokens.end());
    trained.insert(trained.end(), tokens.size(), learned);
  }
  document.tokens.push_back(ByteTokenizer::kEnd);
  trained.push_back(passage.back().trained || form == DataForm::running_text);
  set_loss_mask(document, trained);
  return document;
}

std::vector<Passage> read_text(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  TextLines lines(text);
  std::vector<Passage> passages;
  std::string document;
  const auto finish = [&] {
    if (!document.empty()) passages.push_back({{document}});
    document.clear();
  };
  for (std::string_view line; lines.next(line);) {
    if (lines.number() == 1) line = without_byte_order_mark(line);
    if (is_blank(line)) {
      finish();
    } else {
      document.append(document.empty() ? "" : "\n").append(line);
    }
  }
  finish();
  return passages;
}

std::vector<Passage> read_json_lines(const std::filesystem::path& path, DataForm form) {
  const std::string text = read_file(path);
  TextLines lines(text);
  std::vector<Passage> passages;
  for (std::string_view line; lines.next(line);) {
    const std::string_view record = without_byte_order_mark(line);
    if (is_blank(record)) continue;
    const std::string where = fmt::format("{}:{}", path.string(), lines.number());
    passages.push_back(parse_record(record, where));
    const Piece& first = passages.back().front();
    if (form == DataForm::prompt_response && (first.trained || first.text.empty())) {
      throw InputError(
          {.where = where, .reason = "prompt_response needs a question, a prompt or messages"});
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
      throw InputError({.where = path.string(),
                        .reason = "plain text has no prompts; prompt_response needs jsonl"});
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
    throw InputError(
        {.where = source.paths.empty() ? "generator" : source.paths.front().string(),
         .reason = fmt::format("no documents in range [{}, {}) of {}", source.range_begin,
                               source.range_end, passages.size())});
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
