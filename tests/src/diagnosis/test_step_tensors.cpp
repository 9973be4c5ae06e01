// Statistics of the tensors that a step writes, by the operation that writes them.
#include <catch2/catch.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "src/diagnosis/step_tensors.hpp"
#include "tests/src/diagnosis/diagnosed_run.hpp"

using namespace fp8lab;
using fp8lab::test::DiagnosedRun;

namespace {

std::vector<StepTensor> chosen(const std::vector<StepTensor>& tensors, const std::string& layer,
                               const std::string& operation) {
  std::vector<StepTensor> found;
  for (const StepTensor& tensor : tensors) {
    if (tensor.layer == layer && tensor.operation == operation) found.push_back(tensor);
  }
  return found;
}

}  // namespace

TEST_CASE("every tensor of a step is measured where it is written") {
  DiagnosedRun run("infir2");
  const std::vector<StepTensor> tensors =
      tensors_of_step(run.backend(), run.at_checkpoint(), run.next_step());

  // The embedding: rows of the table.
  const CheckpointedRun opened = run.at_checkpoint();
  CheckpointAtWork work(run.backend(), opened);
  const Parameter& table = work.memory.parameters.all().front();
  const std::vector<float> weights = work.memory.parameters.download(table);
  const StepBatch step = run.next_step();
  double sum = 0, squares = 0, amax = 0;
  for (const std::int32_t token : step.batch[kTokens]) {
    for (std::int64_t i = 0; i < table.declaration.cols; ++i) {
      const auto at = static_cast<std::size_t>(token * table.declaration.cols + i);
      const double value = static_cast<double>(weights[at]);
      sum += value;
      squares += value * value;
      amax = std::max(amax, std::abs(value));
    }
  }
  const auto embedded = chosen(tensors, "embed.weight", "embedding_forward");
  REQUIRE(embedded.size() == 1);
  const StepTensor& embedding = embedded.front();
  const auto count = static_cast<double>(embedding.rows * embedding.cols);
  CHECK(count == static_cast<double>(step.batch[kTokens].size()) * 64);
  // The working copy is in bf16.
  CHECK(embedding.mean == Approx(sum / count).margin(1e-4));
  CHECK(embedding.deviation == Approx(std::sqrt(squares / count)).epsilon(0.01));
  CHECK(embedding.amax == Approx(amax).epsilon(0.01));
  CHECK(embedding.phase == "forward");

  // Three products of each linear layer, and the norms before them.
  for (const char* gemm : {"fprop", "dgrad", "wgrad"}) {
    std::size_t products = 0;
    for (const StepTensor& tensor : tensors) {
      if (tensor.operation.find(std::string("(") + gemm + ")") != std::string::npos) ++products;
    }
    INFO(gemm);
    CHECK(products == 9);  // 4 in each layer, and the head
  }
  // The gradient of the logits: rows of tokens that are masked.
  double masked = 0;
  for (const float weight : step.batch[kTargetWeights]) masked += weight == 0.0f ? 1.0 : 0.0;
  const double share = masked / static_cast<double>(step.batch[kTargetWeights].size());
  CHECK(share > 0.1);
  int gradients = 0;
  for (const StepTensor& tensor : tensors) {
    if (tensor.operation.find("cross_entropy") == std::string::npos || tensor.cols != 272) continue;
    CHECK(tensor.zeros == Approx(share).margin(0.05));
    ++gradients;
  }
  CHECK(gradients == 1);

  bool has_backward = false;
  for (const StepTensor& tensor : tensors) {
    CHECK(tensor.nonfinite == 0);
    CHECK(tensor.deviation >= 0.0);
    CHECK(tensor.deviation <= tensor.amax);
    CHECK((tensor.zeros >= 0.0 && tensor.zeros <= 1.0));
    has_backward = has_backward || tensor.phase == "backward";
  }
  CHECK(has_backward);
}

TEST_CASE("looking at the tensors of a step changes none of its bits") {
  DiagnosedRun run("te_delayed");
  const auto first = tensors_of_step(run.backend(), run.at_checkpoint(), run.next_step());
  const auto second = tensors_of_step(run.backend(), run.at_checkpoint(), run.next_step());
  REQUIRE(first.size() == second.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i].mean == second[i].mean);
    CHECK(first[i].deviation == second[i].deviation);
  }
}
