#include "src/evaluation/answers.hpp"

#include "emulation/base/error.hpp"

namespace fp8lab {

std::vector<Problem> choose_problems(const DataSources& data, std::int64_t count,
                                     std::int64_t max_new_tokens, std::int64_t limit) {
  std::vector<Problem> problems;
  for (const auto& corpus : data.corpora) {
    for (std::int64_t i = 0; i < corpus->size(); ++i) {
      if (static_cast<std::int64_t>(problems.size()) == count) break;
      const DocumentView document = corpus->document(i);
      const std::int64_t length = prompt_length(document);
      if (length + max_new_tokens > limit) continue;
      Problem problem;
      for (std::int64_t j = 0; j < length; ++j) problem.prompt.push_back(document.token(j));
      if (data.vocabulary().has_text()) problem.expected = final_answer(corpus->reference(i));
      problems.push_back(std::move(problem));
    }
  }
  data.require_unchanged();
  return problems;
}

bool is_right(const Problem& problem, const std::vector<std::int32_t>& completion,
              const Vocabulary& vocabulary) {
  return !problem.expected.empty() &&
         final_answer(vocabulary.decode(completion)) == problem.expected;
}

double pass_at_k(std::int64_t n, std::int64_t right, std::int64_t k) {
  FP8LAB_ASSERT(1 <= k && k <= n && 0 <= right && right <= n);
  if (n - right < k) return 1.0;
  double none = 1.0;
  for (std::int64_t i = n - right + 1; i <= n; ++i) {
    none *= 1.0 - static_cast<double>(k) / static_cast<double>(i);
  }
  return 1.0 - none;
}

}  // namespace fp8lab
