// Multiple-choice questions, answered by the likelihood of each choice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/data/vocabulary.hpp"
#include "src/evaluation/scorer.hpp"

namespace fp8lab {

struct Choice {
  std::vector<std::int32_t> tokens;
  std::int64_t bytes = 0;  ///< length of the text; 0: unknown
};

struct Question {
  std::vector<std::int32_t> prompt;
  std::vector<Choice> choices;
  std::size_t answer = 0;  ///< index of the right choice
};

/// The questions of a file, and the XXH3-64 of its bytes as 16 digits.
struct QuestionSet {
  std::vector<Question> questions;
  std::string hash;
};

/// Reads JSON lines: {"question": TEXT, "choices": [TEXT, ...], "answer": INDEX or "A", "B",
/// ...}. TEXT is a string, for models of the byte-level vocabulary, or a list of token ids. A
/// choice directly follows the question; a question that is a string begins with the vocabulary's
/// begin token. Other keys are ignored. Throws Error with file:line for anything else, and for
/// ids outside `vocab_size`.
QuestionSet read_questions(const std::filesystem::path& file, const Vocabulary& vocabulary,
                           std::int64_t vocab_size);

/// Fractions of questions whose right choice has the largest log-probability
/// (the first among equals).
struct ChoiceAccuracy {
  std::int64_t questions = 0;
  double sum = 0;        ///< by the log-probability of all tokens of the choice
  double per_token = 0;  ///< by the same divided by the number of tokens
  double per_byte = -1;  ///< by the same divided by the bytes of the choice; -1: some are unknown
};

/// Scores every choice after its question by full forward passes.
ChoiceAccuracy score_questions(const StepContext& context, Scorer& scorer,
                               const std::vector<Question>& questions,
                               const PartReport& report = {});

}  // namespace fp8lab
