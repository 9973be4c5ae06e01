// Held-out losses by document: the sums that run files keep of an evaluation.
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "src/evaluation/evaluator.hpp"
#include "src/evaluation/held_out.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kLength = 128;

/// Prompts are masked; running text goes on from one sequence to the next.
EvalConfig two_sources(std::uint64_t seed, DataForm form) {
  EvalConfig config;
  config.data = {form, {}};
  for (std::uint64_t i = 0; i < 2; ++i) {
    SourceConfig source;
    source.kind = DataKind::arithmetic;
    source.problems = 40;
    source.corpus_seed = seed + i;
    source.weight = 1.0 + 2.0 * static_cast<double>(i);
    config.data.sources.push_back(source);
  }
  config.sequences = 16;
  return config;
}

/// One untrained model on two sources, evaluated with so many threads and sequences at a time.
struct Fixture {
  explicit Fixture(const std::string& recipe_name, int threads = 2, std::int64_t together = 2,
                   std::uint64_t seed = 1, DataForm form = DataForm::prompt_response)
      : eval(two_sources(seed, form)),
        recipe(load_recipe(recipe_name)),
        backend(make_backend("cpu", threads)),
        parameters(*backend, model, OptimizerConfig{}, recipe.activation_dtype),
        data(open_sources(eval.data, model.vocab_size, "test")) {
    parameters.initialize(7);
    transformer = std::make_unique<Transformer>(*backend, parameters, model, recipe,
                                                BatchShape{together, kLength, {}});
    evaluator = std::make_unique<Evaluator>(*backend, parameters, *transformer, eval, data, inputs);
  }
  HeldOutLoss loss() { return evaluator->evaluate(StepContext{}, false).held_out; }

  ModelConfig model = small_model();
  EvalConfig eval;
  EvaluationInputs inputs;
  Recipe recipe;
  std::unique_ptr<Backend> backend;
  Parameters parameters;
  DataSources data;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<Evaluator> evaluator;
};

}  // namespace

TEST_CASE("sums by document are those of the tokens, bit for bit") {
  const DataForm form = GENERATE(DataForm::prompt_response, DataForm::running_text);
  Fixture fixture("infir2", 2, 2, 1, form);
  const HeldOutLoss loss = fixture.loss();
  // The documents of the tokens, from the data alone.
  std::map<std::pair<std::size_t, std::int64_t>, DocumentLoss> expected;
  std::vector<std::pair<std::size_t, std::int64_t>> order;
  Mixture mixture(fixture.data, 0, 0xe7a1);
  for (int pass = 0; pass < 8; ++pass) {
    const Batch batch = mixture.next(2, kLength);
    for (std::size_t i = 0; i < batch[kTargets].size(); ++i) {
      if (batch[kTargetWeights][i] != 0.0f) {
        order.emplace_back(mixture.chosen()[i / kLength], batch.documents[i]);
      }
    }
  }
  std::size_t next = 0;
  const TensorView scalars =
      fixture.backend->allocate(fixture.backend->storage(DType::f32), 1, StepScalar::kCount);
  HeldOutPass{*fixture.backend, *fixture.transformer, scalars, fixture.data, 16}.run(
      StepContext{}, [&](const HeldOutToken& token) {
        const auto [source, document] = order.at(next++);
        DocumentLoss& sum = expected[{source, document}];
        sum = {source, document, sum.tokens + 1, sum.nats + token.loss};
      });
  REQUIRE(next == order.size());
  REQUIRE(loss.documents.size() == expected.size());
  REQUIRE(loss.documents.size() > 10);
  for (const DocumentLoss& one : loss.documents) {
    CHECK(one == expected.at({one.source, one.document}));
  }
  CHECK(loss.documents.front().document == order.front().second);
}

TEST_CASE("sums by document make up the loss and that of each source") {
  Fixture fixture("bf16");
  const HeldOutLoss loss = fixture.loss();
  double nats = 0;
  std::int64_t tokens = 0;
  std::vector<double> of_source(2);
  for (const DocumentLoss& one : loss.documents) {
    CHECK(one.tokens > 0);
    nats += one.nats;
    tokens += one.tokens;
    of_source.at(one.source) += one.nats;
  }
  REQUIRE(loss.sources.size() == 2);
  CHECK(tokens == loss.sources[0].tokens + loss.sources[1].tokens);
  for (std::size_t i = 0; i < 2; ++i) {
    const double mean = of_source[i] / static_cast<double>(loss.sources[i].tokens);
    CHECK(mean == Approx(loss.sources[i].loss).epsilon(1e-13));  // another order of FP64 sums
  }
  // The mean is an FP32 tree over the 256 tokens of each of eight micro-batches, added in turn.
  const double roundings = 8 + 8;
  CHECK(nats / static_cast<double>(tokens) ==
        Approx(loss.mean).epsilon(roundings * std::ldexp(1.0, -24)));
}

TEST_CASE("sums by document and the text have the same bits for any threads and micro-batches") {
  const HeldOutLoss loss = Fixture("infir2").loss();
  for (const auto& [threads, together] : {std::pair{1, std::int64_t{2}},
                                          {3, std::int64_t{2}},
                                          {2, std::int64_t{1}},
                                          {1, std::int64_t{8}}}) {
    const HeldOutLoss other = Fixture("infir2", threads, together).loss();
    INFO(threads << " threads, " << together << " sequences");
    CHECK(other.documents == loss.documents);
    CHECK(other.text == loss.text);
  }
  // Other numerics on the same text, and the same numerics on another one.
  const HeldOutLoss exact = Fixture("bf16").loss();
  CHECK(exact.text == loss.text);
  CHECK(exact.documents != loss.documents);
  CHECK(Fixture("infir2", 2, 2, 5).loss().text != loss.text);
}

TEST_CASE("a document is its source and its place, and goes on after others") {
  DocumentSums sums;
  sums.add({0, 5, 0, 1.0});
  sums.add({1, 5, 0, 2.0});
  sums.add({1, 6, 0, 4.0});
  sums.add({0, 5, 0, 8.0});
  sums.add({1, 5, 0, 16.0});
  CHECK(sums.documents() ==
        std::vector<DocumentLoss>{{0, 5, 2, 9.0}, {1, 5, 2, 18.0}, {1, 6, 1, 4.0}});
}
