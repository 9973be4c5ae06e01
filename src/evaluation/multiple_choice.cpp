#include "src/evaluation/multiple_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>

#include "emulation/base/input_error.hpp"
#include "src/config/reading/json_fields.hpp"
#include "src/data/prompt_text.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/text_lines.hpp"
#include "src/io/hash.hpp"
#include "src/io/json_document.hpp"

namespace fp8lab {
namespace {

/// Reads an answer given as a number or a letter and returns its index.
std::size_t read_answer(JsonFields& fields, std::size_t choices) {
  const nlohmann::json& value = fields.value("answer");
  std::size_t answer = choices;
  if (value.is_number_unsigned()) answer = value.get<std::size_t>();
  if (value.is_string() && value.get_ref<const std::string&>().size() == 1) {
    const char letter = value.get_ref<const std::string&>().front();
    if (letter >= 'A' && letter <= 'Z') answer = static_cast<std::size_t>(letter - 'A');
  }
  if (answer >= choices) {
    fields.fail("answer", {.reason = fmt::format("is not one of the {} choices", choices),
                           .accepted = "an index from 0 on, or a letter from \"A\" on"});
  }
  return answer;
}

Question read_question(const nlohmann::json& object, const std::string& where,
                       const Vocabulary& vocabulary, std::int64_t vocab_size) {
  JsonFields fields(object, where);
  const TextReader reader(vocabulary, vocab_size);
  Question question;
  const nlohmann::json& prompt = fields.value("question");
  question.prompt = reader.tokens(prompt, where + ": \"question\"");
  if (prompt.is_string() && vocabulary.begin() >= 0) {
    question.prompt.insert(question.prompt.begin(), vocabulary.begin());
  }
  if (question.prompt.empty()) fields.fail("question", {.reason = "is empty"});
  const nlohmann::json& choices = fields.value("choices");
  if (!choices.is_array() || choices.size() < 2) {
    fields.fail("choices", {.reason = "is no list of at least two"});
  }
  for (const nlohmann::json& value : choices) {
    Choice choice;
    choice.tokens = reader.tokens(value, where + ": \"choices\"");
    if (choice.tokens.empty()) fields.fail("choices", {.reason = "holds an empty one"});
    for (const Choice& other : question.choices) {
      if (other.tokens != choice.tokens) continue;
      fields.fail("choices",
                  {.reason = "holds two that are equal, of which none can be told to be right"});
    }
    if (vocabulary.has_text()) {
      choice.bytes = static_cast<std::int64_t>(vocabulary.decode(choice.tokens).size());
    }
    question.choices.push_back(std::move(choice));
  }
  question.answer = read_answer(fields, question.choices.size());
  return question;
}

/// Returns true if the right choice is the first of the largest; false if a score is NaN.
bool is_best(const std::vector<double>& scores, std::size_t answer) {
  const auto is_nan = [](double score) { return std::isnan(score); };
  if (std::any_of(scores.begin(), scores.end(), is_nan)) return false;
  return std::max_element(scores.begin(), scores.end()) - scores.begin() ==
         static_cast<std::ptrdiff_t>(answer);
}

}  // namespace

QuestionSet read_questions(const std::filesystem::path& file, const Vocabulary& vocabulary,
                           std::int64_t vocab_size) {
  const std::string text = read_file(file);
  TextLines lines(text);
  QuestionSet set{{}, hex16(xxh3(text))};
  for (std::string_view line; lines.next(line);) {
    if (is_blank(line)) continue;
    const std::string where = fmt::format("{}:{}", file.string(), lines.number());
    const nlohmann::json object = parse_json(line, where);
    if (!object.is_object()) throw InputError({.where = where, .reason = "not an object"});
    set.questions.push_back(read_question(object, where, vocabulary, vocab_size));
  }
  if (set.questions.empty()) throw InputError({.where = file.string(), .reason = "no questions"});
  return set;
}

ChoiceAccuracy score_questions(const StepContext& context, Scorer& scorer,
                               const std::vector<Question>& questions, const PartReport& report) {
  std::vector<ScoredText> texts;
  for (const Question& question : questions) {
    for (const Choice& choice : question.choices) {
      ScoredText text{question.prompt, static_cast<std::int64_t>(question.prompt.size())};
      text.tokens.insert(text.tokens.end(), choice.tokens.begin(), choice.tokens.end());
      texts.push_back(std::move(text));
    }
  }
  const std::vector<std::vector<double>> scores =
      scorer.score(context, texts, Packing::tiles, report);
  std::int64_t sum_right = 0, token_right = 0, byte_right = 0;
  bool bytes_known = true;
  std::size_t next = 0;
  for (const Question& question : questions) {
    std::vector<double> sums, per_token, per_byte;
    for (const Choice& choice : question.choices) {
      const std::vector<double>& tokens = scores[next++];
      sums.push_back(std::accumulate(tokens.begin(), tokens.end(), 0.0));
      per_token.push_back(sums.back() / static_cast<double>(tokens.size()));
      bytes_known = bytes_known && choice.bytes > 0;
      per_byte.push_back(sums.back() /
                         static_cast<double>(std::max<std::int64_t>(choice.bytes, 1)));
    }
    sum_right += is_best(sums, question.answer) ? 1 : 0;
    token_right += is_best(per_token, question.answer) ? 1 : 0;
    byte_right += is_best(per_byte, question.answer) ? 1 : 0;
  }
  const auto share = [&](std::int64_t right) {
    return static_cast<double>(right) / static_cast<double>(questions.size());
  };
  return {static_cast<std::int64_t>(questions.size()), share(sum_right), share(token_right),
          bytes_known ? share(byte_right) : -1.0};
}

}  // namespace fp8lab
