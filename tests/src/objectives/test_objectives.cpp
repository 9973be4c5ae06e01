// Objectives: what they compute beside the same in double precision, their columns of a batch, and
// what they log.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "src/config/config.hpp"
#include "src/data/mixture.hpp"
#include "src/objectives/objective.hpp"
#include "src/objectives/policy_gradient.hpp"
#include "src/train/step/training_step.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using Catch::Contains;

namespace {

constexpr std::int64_t kLength = 24;

const std::unique_ptr<Objective>& policy_gradient() {
  static const auto objective = make_objective({ObjectiveKind::policy_gradient});
  return objective;
}

/// A batch of the sample documents, each trained token with the advantage of `advantage`.
template <class Advantage>
Batch sample_batch(Advantage advantage) {
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::prompt_response, 3, 0);
  const std::vector<ColumnSpec> columns = {kAdvantages};
  Batch batch = Batch::padded(2, kLength, ByteTokenizer::kPadding, columns);
  const Batch tokens = dataset.next(2, kLength);
  batch[kTokens] = tokens[kTokens];
  batch[kTargets] = tokens[kTargets];
  batch[kTargetWeights] = tokens[kTargetWeights];
  batch[kPositions] = tokens[kPositions];
  batch[kDocumentStarts] = tokens[kDocumentStarts];
  batch.trained_tokens = tokens.trained_tokens;
  for (std::size_t i = 0; i < batch[kTokens].size(); ++i) {
    if (batch[kTargetWeights][i] != 0.0f) batch[kAdvantages][i] = advantage(i);
  }
  return batch;
}

float mixed_advantage(std::size_t token) {
  return static_cast<float>(token % 5) * 0.75f - 1.5f;  // of both signs, and 0
}

struct Results {
  double loss = 0;
  std::vector<double> logits, token_losses, gradient;  ///< gradient of the logits
};

/// One model on one backend, for batches with advantages.
class AtWork {
 public:
  explicit AtWork(const std::string& backend_name, std::int64_t loss_chunk = 0)
      : backend_(make_backend(backend_name, 2)),
        parameters_(*backend_, fp8lab::test::small_model(), OptimizerConfig{},
                    load_recipe("bf16").activation_dtype),
        transformer_(*backend_, parameters_, fp8lab::test::small_model(), load_recipe("bf16"),
                     BatchShape{2, kLength, {}, {.loss_chunk = loss_chunk}, {kAdvantages}}),
        block_(*backend_) {
    parameters_.initialize(7);
  }

  Results run(const Objective& objective, const Batch& batch) {
    begin_step(*backend_, block_.scalars, 0.0, batch.trained_tokens);
    transformer_.load(batch);
    transformer_.prepare_weights({});
    transformer_.forward({});
    Results results;
    results.logits = read(transformer_.logits());
    objective.run(transformer_, block_.scalars, Leaves::gradient);
    results.gradient = read(transformer_.logits());
    results.token_losses = read(transformer_.token_losses());
    results.loss = read(block_.scalars)[StepScalar::kLossSum];
    return results;
  }

  /// The gradients of all parameters after one pass, and the loss.
  std::pair<std::vector<double>, double> step(const Objective& objective, const Batch& batch) {
    const TrainingStep step{*backend_, parameters_, transformer_, block_, objective};
    step.accumulate({}, {&batch, 1}, 0.0);
    std::vector<double> all;
    for (const Parameter& parameter : parameters_.all()) {
      const std::vector<double> own = read(parameter.gradient());
      all.insert(all.end(), own.begin(), own.end());
    }
    return {all, step.results().mean_loss()};
  }

 private:
  std::vector<double> read(const TensorView& view) {
    std::vector<double> values(static_cast<std::size_t>(view.size()));
    if (view.dtype == DType::f64) {
      backend_->download(values.data(), view);
      return values;
    }
    std::vector<float> floats(values.size());
    download_floats(*backend_, view, floats);
    return {floats.begin(), floats.end()};
  }

  std::unique_ptr<Backend> backend_;
  Parameters parameters_;
  Transformer transformer_;
  StepBlock block_;
};

/// JSON lines with these values under "advantage", as they are written.
SourceConfig records_of(const ScratchDirectory& scratch, const std::vector<std::string>& values) {
  SourceConfig source;
  source.kind = DataKind::jsonl;
  source.paths = {scratch / "records.jsonl"};
  std::ofstream file(source.paths.front());
  for (std::size_t i = 0; i < values.size(); ++i) {
    file << R"({"question": "q)" << i << R"(", "answer": "a", "advantage": )" << values[i]
         << "}\n\n";
  }
  return source;
}

}  // namespace

TEST_CASE("policy gradient: loss and gradient are those of the formula in double precision") {
  const Batch batch = sample_batch(mixed_advantage);
  AtWork work("truth");
  const Results results = work.run(*policy_gradient(), batch);
  const auto vocabulary = static_cast<std::size_t>(fp8lab::test::small_model().vocab_size);
  const auto trained = static_cast<double>(batch.trained_tokens);
  double sum = 0, largest = 0;
  int negative = 0;
  for (std::size_t t = 0; t < batch[kTokens].size(); ++t) {
    const double* const z = &results.logits[t * vocabulary];
    const double advantage = batch[kTargetWeights][t] != 0.0f ? double{mixed_advantage(t)} : 0.0;
    const auto target = static_cast<std::size_t>(batch[kTargets][t]);
    double total = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) total += std::exp(z[v]);
    const double loss = -advantage * (z[target] - std::log(total));
    sum += loss;
    negative += loss < 0.0 ? 1 : 0;
    CHECK(results.token_losses[t] == Approx(loss).epsilon(1e-6).margin(1e-12));
    for (std::size_t v = 0; v < vocabulary; ++v) {
      const double onehot = v == target ? 1.0 : 0.0;
      const double expected = advantage * (std::exp(z[v]) / total - onehot) / trained;
      const double difference = results.gradient[t * vocabulary + v] - expected;
      largest = std::max(largest, std::abs(difference));
    }
  }
  CHECK(negative > 3);
  CHECK(largest < 1e-12);
  CHECK(results.loss == Approx(sum).epsilon(1e-9));
}

TEST_CASE("policy gradient: an advantage of 1 has the bits of cross-entropy") {
  const Batch batch = sample_batch([](std::size_t) { return 1.0f; });
  AtWork work("cpu");
  CHECK(work.step(*policy_gradient(), batch) == work.step(likelihood(), batch));
  const Batch other = sample_batch(mixed_advantage);
  CHECK(work.step(*policy_gradient(), other) != work.step(likelihood(), other));
}

TEST_CASE("policy gradient: bits do not depend on the chunks of the logits") {
  const Batch batch = sample_batch(mixed_advantage);
  AtWork whole("cpu"), chunked("cpu", 16);
  const auto [gradients, loss] = whole.step(*policy_gradient(), batch);
  const auto [other_gradients, other_loss] = chunked.step(*policy_gradient(), batch);
  CHECK(loss == other_loss);
  REQUIRE(gradients.size() == other_gradients.size());
}

TEST_CASE("an objective reads the columns that it names, and no others need be there") {
  std::vector<std::string> names;
  for (const ColumnSpec& column : policy_gradient()->columns()) names.emplace_back(column.name);
  CHECK(names == std::vector<std::string>{"targets", "advantages"});
  CHECK(policy_gradient()->own_columns().size() == 1);
  CHECK(likelihood().own_columns().empty());
  // A held-out batch has no advantages; a likelihood reads none.
  AtWork work("cpu");
  Dataset dataset(make_corpus(fp8lab::test::sample_documents()), DataForm::prompt_response, 3, 0);
  const Batch held_out = dataset.next(2, kLength);
  CHECK(std::isfinite(work.run(likelihood(), held_out).loss));
}

TEST_CASE("the metrics of a run are those of its objectives") {
  RunConfig config;
  config.stages.resize(2);
  CHECK(metrics_of(config).empty());
  for (StageConfig& stage : config.stages) {
    stage.objective.kind = ObjectiveKind::policy_gradient;
    REQUIRE(metrics_of(config).size() == 1);
    CHECK(metrics_of(config).front().name == "advantage");
  }
  const std::vector<Batch> batches = {sample_batch([](std::size_t) { return 0.5f; }),
                                      sample_batch([](std::size_t) { return -1.0f; })};
  CHECK(policy_gradient()->measure(batches) == std::vector<double>{-0.25});
  CHECK(std::isnan(policy_gradient()->measure({}).front()));
  CHECK(likelihood().measure(batches).empty());
}

TEST_CASE("a record's number stands at each trained token of its document") {
  const ScratchDirectory scratch;
  const SourceConfig source = records_of(scratch, {"0.5", "-2", "3e0"});
  const std::vector<ColumnSpec> columns = policy_gradient()->own_columns();
  const auto corpus = open_corpus(source, DataForm::prompt_response, {}, columns);
  DataSources sources{DataForm::prompt_response, {corpus}, {1.0}};
  Mixture mixture(sources, 1, 0, columns);
  std::vector<std::int64_t> seen(3, 0);
  for (int i = 0; i < 6; ++i) {
    const Batch batch = mixture.next(1, 64);
    for (std::size_t t = 0; t < 64; ++t) {
      if (batch[kTargetWeights][t] == 0.0f) {
        REQUIRE(batch[kAdvantages][t] == 0.0f);
        continue;
      }
      const float expected[] = {0.5f, -2.0f, 3.0f};
      const auto document = static_cast<std::size_t>(batch.documents[t]);
      REQUIRE(batch[kAdvantages][t] == expected[document]);
      ++seen[document];
    }
  }
  for (const std::int64_t tokens : seen) CHECK(tokens > 0);
  // The numbers are part of the data, and only of those that have them.
  const auto plain = open_corpus(source, DataForm::prompt_response);
  CHECK(plain->hash() != corpus->hash());
  CHECK_THROWS_AS(plain->value(0, kAdvantages), Error);
  const auto changed = open_corpus(records_of(scratch, {"0.5", "-2", "3.5"}),
                                   DataForm::prompt_response, {}, columns);
  CHECK(changed->hash() != corpus->hash());
  CHECK(open_corpus(source, DataForm::prompt_response)->hash() == plain->hash());
  SourceConfig half = records_of(scratch, {"1", "2", "3", "4"});
  half.range_begin = 0.5;
  const auto rest = open_corpus(half, DataForm::prompt_response, {}, columns);
  REQUIRE(rest->size() == 2);
  CHECK(rest->value(0, kAdvantages) == 3.0f);
  CHECK(rest->value(1, kAdvantages) == 4.0f);
}

TEST_CASE("data without the number that an objective reads are refused by name") {
  const ScratchDirectory scratch;
  const std::vector<ColumnSpec> columns = policy_gradient()->own_columns();
  for (const char* value : {"\"1\"", "null", "1e39", "true", "[1]"}) {
    INFO(value);
    CHECK_THROWS_WITH(
        open_corpus(records_of(scratch, {"1", value}), DataForm::prompt_response, {}, columns),
        Contains("records.jsonl:3: expected a finite number in \"advantage\""));
  }
  SourceConfig generated;
  CHECK_THROWS_WITH(open_corpus(generated, DataForm::prompt_response, {}, columns),
                    Contains("arithmetic: documents of kind = \"arithmetic\" have no number "
                             "\"advantage\"") &&
                        Contains("accepted: kind = \"jsonl\""));
}
