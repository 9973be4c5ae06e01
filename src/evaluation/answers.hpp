// Problems whose answers can be checked.
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

/// Returns the first `count` prompts of `data` that leave room for
/// `max_new_tokens` within `limit` tokens.
std::vector<Problem> choose_problems(const DataSources& data, std::int64_t count,
                                     std::int64_t max_new_tokens, std::int64_t limit);

/// Returns whether `completion` gives the expected final answer; false if the problem has none.
bool is_right(const Problem& problem, const std::vector<std::int32_t>& completion,
              const Vocabulary& vocabulary);

/// Returns the unbiased estimate of the probability that at least one of k samples is right,
/// given that `right` of n were: 1 - C(n - right, k) / C(n, k) (Chen et al. 2021, "Evaluating
/// Large Language Models Trained on Code", equation 1), as a product in double precision.
/// Precondition: 1 <= k <= n.
double pass_at_k(std::int64_t n, std::int64_t right, std::int64_t k);

}  // namespace fp8lab
