// Offline policy gradient: raises the probability of recorded responses with a positive advantage,
// and lowers that of responses with a negative one:
//   L = -1/N sum_t A_t log p(target_t | tokens of the document up to t)
// over the N trained tokens of the step. A_t is the advantage of the token's document, the number
// "advantage" of its record: the reward less a baseline, such as the mean reward of the responses
// to the same prompt, perhaps over their standard deviation (GRPO, arXiv:2402.03300,
// section 4.1.2).
//
// The gradient is that of REINFORCE (Williams, "Simple statistical gradient-following algorithms
// for connectionist reinforcement learning", Machine Learning 8, 1992), with the mean over tokens
// and not over responses (DAPO, arXiv:2503.14476, section 3.3). It is that of the expected reward
// if the responses were sampled from the weights that the step starts with. There is no importance
// ratio, no clipping and no divergence from a reference model.
#pragma once

#include <span>
#include <vector>

#include "src/objectives/cross_entropy.hpp"

namespace fp8lab {

/// The advantage of the document at each trained token, else 0.
inline constexpr Column<float> kAdvantages{"advantages", false, "advantage"};

/// Loss and gradient are rounded as by ops::CrossEntropy, whose weights are the advantages. Logs
/// the mean advantage of the trained tokens of a step.
class PolicyGradient final : public CrossEntropy {
 public:
  PolicyGradient() : CrossEntropy(kAdvantages) {}

  std::vector<MetricColumn> metrics() const override;
  std::vector<double> measure(std::span<const Batch> batches) const override;
};

}  // namespace fp8lab
