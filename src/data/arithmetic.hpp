// The embedded corpus: worded arithmetic with worked solutions and a checkable final answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fp8lab {

/// A problem in words, its worked solution and the final answer. The solution ends with the answer
/// after "#### " (the convention of GSM8K).
struct WordProblem {
  std::string family;
  std::string question;
  std::string solution;
  std::int64_t answer = 0;
};

/// Returns the names of the problem families, in the order of generation.
const std::vector<std::string>& arithmetic_families();

/// Generates `count` problems from `families` (empty: all). A problem whose question hashes into
/// a fixed tenth of the hash space is generated only if `held_out`, and all others only
/// otherwise, for every seed: training corpora and held-out corpora never share a question.
/// Throws Error for an unknown family.
std::vector<WordProblem> generate_arithmetic(std::uint64_t seed, std::int64_t count,
                                             const std::vector<std::string>& families,
                                             bool held_out);

}  // namespace fp8lab
