// Problems with an answer that can be checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/data/mixture.hpp"

namespace fp8lab {

struct Problem {
  std::vector<std::int32_t> prompt;
  std::string expected;  ///< final_answer() of the reference; empty for ids without text
};

/// The first `count` prompts of `data` that leave room for `max_new_tokens` in `limit` tokens.
std::vector<Problem> choose_problems(const DataSources& data, std::int64_t count,
                                     std::int64_t max_new_tokens, std::int64_t limit);

/// Does `completion` give the expected final answer? A problem without one is never right.
bool is_right(const Problem& problem, const std::vector<std::int32_t>& completion,
              const Vocabulary& vocabulary);

/// The unbiased estimate of the chance that one of k samples is right, when `right` of n were:
/// 1 - C(n - right, k) / C(n, k) (Chen et al. 2021, "Evaluating Large Language Models Trained on
/// Code", equation 1), as a product in double precision. 1 <= k <= n.
double pass_at_k(std::int64_t n, std::int64_t right, std::int64_t k);

}  // namespace fp8lab
