// Cross-entropy over the tokens that have a target: all tokens of running text, and only those of
// the answers in supervised fine-tuning (kTargetWeights):
//   L = -1/N sum_t w_t log p(target_t | tokens of the document up to t),   N trained tokens.
#pragma once

#include <vector>

#include "src/objectives/objective.hpp"

namespace fp8lab {

class CrossEntropy : public Objective {
 public:
  /// `weights` are w, one for each token, 0 where none is trained on. Loss and gradient are rounded
  /// as by ops::CrossEntropy.
  explicit CrossEntropy(const Column<float>& weights = kTargetWeights) : weights_(weights) {}

  std::vector<ColumnSpec> columns() const override { return {kTargets, weights_}; }

 protected:
  void run_chunk(Transformer& model, const Transformer::LogitChunk& chunk,
                 const Results& results) const override;

 private:
  Column<float> weights_;
};

}  // namespace fp8lab
