// Whole evaluations: by source, rollouts in two numerics, multiple choice.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/evaluation/evaluator.hpp"
#include "src/evaluation/sharpness.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kLength = 128;

SourceConfig arithmetic(std::uint64_t seed, double weight) {
  SourceConfig source;
  source.kind = DataKind::arithmetic;
  source.problems = 40;
  source.corpus_seed = seed;
  source.weight = weight;
  return source;
}

EvalConfig two_sources() {
  EvalConfig config;
  config.data = {DataForm::prompt_response, {arithmetic(1, 1.0), arithmetic(2, 3.0)}};
  config.sequences = 16;
  config.max_new_tokens = 12;
  return config;
}

/// One untrained model and its evaluation.
struct Fixture {
  Fixture(const std::string& recipe_name, const EvalConfig& eval)
      : recipe(load_recipe(recipe_name)),
        backend(make_backend("cpu", 2)),
        parameters(*backend, model, OptimizerConfig{}, recipe.activation_dtype),
        data(open_sources(eval.data, model.vocab_size, "test")),
        inputs(read_evaluation_inputs(eval, data, model, kLength, "eval")) {
    parameters.initialize(7);
    transformer = std::make_unique<Transformer>(*backend, parameters, model, recipe,
                                                BatchShape{2, kLength, {}});
    evaluator = std::make_unique<Evaluator>(*backend, parameters, *transformer, eval, data, inputs);
  }
  Evaluation evaluate() { return evaluator->evaluate(StepContext{}, true); }

  ModelConfig model = small_model();
  Recipe recipe;
  std::unique_ptr<Backend> backend;
  Parameters parameters;
  DataSources data;
  EvaluationInputs inputs;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<Evaluator> evaluator;
};

EvalConfig with_rollout(const std::string& recipe) {
  EvalConfig config = two_sources();
  config.rollout = RolloutConfig{recipe, 5, 2.0, 4, {}};
  config.exact_match = 1;  // greedy answers have a generator of their own
  return config;
}

double score(const Evaluation& evaluation, const std::string& name) {
  for (const Score& entry : scores_of(evaluation)) {
    if (entry.name == name) return entry.value;
  }
  FAIL("no score " << name);
  return 0;
}

std::string refusal(const std::string& text, const Vocabulary& vocabulary = Vocabulary::bytes()) {
  const ScratchDirectory folder;
  std::ofstream(folder / "q.jsonl") << text;
  try {
    read_questions(folder / "q.jsonl", vocabulary, 272);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("losses of the sources make up the loss of the mixture") {
  Fixture fixture("bf16", two_sources());
  const Evaluation evaluation = fixture.evaluate();
  const HeldOutLoss& loss = evaluation.held_out;
  REQUIRE(loss.sources.size() == 2);
  double nats = 0, tokens = 0;
  for (const HeldOutLoss::Source& source : loss.sources) {
    nats += source.loss * static_cast<double>(source.tokens);
    tokens += static_cast<double>(source.tokens);
    // One byte a token, but for the end of every document.
    const double bits = source.loss / std::log(2.0);
    CHECK(source.bits_per_byte > bits);
    CHECK(source.bits_per_byte < 1.2 * bits);
  }
  CHECK(loss.mean == Approx(nats / tokens).epsilon(1e-6));
  CHECK(loss.sources[0].loss != loss.sources[1].loss);
  CHECK(2 * loss.sources[1].tokens > 3 * loss.sources[0].tokens);
  // Both are the generator: their place tells them apart.
  CHECK(score(evaluation, "loss/arithmetic#1") == loss.sources[0].loss);
  CHECK(score(evaluation, "loss/arithmetic#2") == loss.sources[1].loss);
  CHECK(!evaluation.exact_match);
  CHECK(!evaluation.rollout);
}

TEST_CASE("sharpness is the largest loss in the box around the logits") {
  // The corners of the box, one by one.
  const std::vector<float> logits = {1.5f, -2.0f, 0.25f};
  const auto loss = [](const std::vector<double>& y, std::size_t target) {
    double sum = 0;
    for (const double value : y) sum += std::exp(value);
    return std::log(sum) - y[target];
  };
  constexpr double kEpsilon = 0.01;
  for (std::size_t target = 0; target < logits.size(); ++target) {
    const std::vector<double> y(logits.begin(), logits.end());
    double worst = 0;
    for (unsigned corner = 0; corner < 8; ++corner) {
      std::vector<double> moved = y;
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double bound = kEpsilon * (std::abs(y[i]) + 1.0);
        moved[i] += (corner >> i & 1u) != 0 ? bound : -bound;
      }
      worst = std::max(worst, loss(moved, target));
    }
    Sharpness sharpness(kEpsilon);
    CHECK(std::isnan(sharpness.phi()));
    sharpness.add(logits, static_cast<std::int32_t>(target));
    const double before = loss(y, target);
    CHECK(sharpness.phi() == Approx(100.0 * (worst - before) / (1.0 + before)).epsilon(1e-9));
  }
  Sharpness broken(kEpsilon);
  broken.add(std::vector<float>{1.0f, std::numeric_limits<float>::infinity()}, 0);
  CHECK(std::isnan(broken.phi()));
}

TEST_CASE("an evaluation has the sharpness of its tokens where it is asked for") {
  EvalConfig config = two_sources();
  Fixture plain("bf16", config);
  config.sharpness = 5e-4;
  Fixture fixture("bf16", config);
  const Evaluation evaluation = fixture.evaluate();
  CHECK(evaluation.held_out.mean == plain.evaluate().held_out.mean);
  CHECK(!plain.evaluate().held_out.sharpness);
  const double phi = score(evaluation, "sharpness");
  CHECK(phi == *evaluation.held_out.sharpness);
  // All logits near zero: the target falls and the others rise by epsilon, at least.
  const double least = 100.0 * 2.0 * 5e-4 * (1.0 - 2.0 / 272.0) / (1.0 + evaluation.held_out.mean);
  CHECK(phi > least);
  CHECK(phi < 3.0 * least);
  std::int64_t tokens = 0;
  for (const auto& source : evaluation.held_out.sources) tokens += source.tokens;
  for (const Score& entry : scores_of(evaluation)) {
    if (entry.name == "sharpness") CHECK(entry.count == tokens);
  }
}

TEST_CASE("sharpness is that of the tokens that have a target, each with its own logits") {
  EvalConfig config = two_sources();
  config.sequences = 2;  // one batch, whose logits stay where they are
  config.sharpness = 5e-4;
  Fixture fixture("bf16", config);
  const Evaluation evaluation = fixture.evaluate();
  const Batch batch = Mixture(fixture.data, 0, 0xe7a1).next(2, kLength);
  const TensorView view = fixture.transformer->logits();
  std::vector<float> logits(static_cast<std::size_t>(view.size()));
  download_floats(*fixture.backend, view, logits);
  Sharpness expected(config.sharpness);
  std::int64_t masked = 0;
  for (std::size_t i = 0; i < batch[kTargets].size(); ++i) {
    if (batch[kTargetWeights][i] == 0.0f) {
      ++masked;
      continue;
    }
    const auto cols = static_cast<std::size_t>(view.cols);
    expected.add({logits.data() + i * cols, cols}, batch[kTargets][i]);
  }
  CHECK(masked > 0);
  CHECK(expected.tokens() == batch.trained_tokens);
  CHECK(score(evaluation, "sharpness") == expected.phi());
}

TEST_CASE("a rollout in the numerics of training has no gap") {
  const std::string recipe = GENERATE("bf16", "infir2", "mxfp8", "torchao_rowwise");
  Fixture fixture(recipe, with_rollout(GENERATE_COPY(std::string(), recipe)));
  const RolloutGap gap = *fixture.evaluate().rollout;
  CHECK(gap.tokens >= 5);
  CHECK(gap.largest == 0.0);
  CHECK(gap.k3 == 0.0);
  CHECK(gap.clipped_mean == 1.0);
}

TEST_CASE("a rollout in other numerics has one") {
  Fixture fixture("bf16", with_rollout("infir2"));
  const Evaluation evaluation = fixture.evaluate();
  CHECK(evaluation.rollout->largest > 0.0);
  CHECK(evaluation.rollout->k3 > 0.0);
  CHECK(evaluation.rollout->k3 < 0.1);
  CHECK(score(evaluation, "rollout/k3") == evaluation.rollout->k3);
  CHECK(score(evaluation, "rollout/k3/4") == evaluation.rollout->buckets[1].k3);
  REQUIRE_THROWS_WITH(Fixture("bf16", with_rollout("te_delayed")),
                      Catch::Contains("needs the amax history of a run"));
  REQUIRE_THROWS_WITH(Fixture("bf16", with_rollout("fp32")),
                      Catch::Contains("activations are f32"));
}

TEST_CASE("an evaluation is repeatable and leaves delayed scales alone") {
  EvalConfig config = two_sources();
  config.exact_match = 4;
  config.pass_at_k = PassAtKConfig{3, 4, {1, 4}, {}};
  Fixture fixture("te_delayed", config);
  const std::vector<Score> first = scores_of(fixture.evaluate());
  const Evaluation again = fixture.evaluate();
  const std::vector<Score> second = scores_of(again);
  REQUIRE(first.size() == second.size());
  for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i].value == second[i].value);
  CHECK(again.exact_match->asked == 4);
  CHECK(again.pass_at_k->problems == 3);
  CHECK(score(again, "pass@4") >= score(again, "pass@1"));
  CHECK(fixture.evaluator->evaluate(StepContext{}, false).exact_match.has_value() == false);
  for (const auto& linear : fixture.transformer->linears()) {
    for (const TensorView& state : linear->delayed_states()) {
      if (state.empty()) continue;
      float amax = 1;
      fixture.backend->download(&amax, state.columns(DelayedState::kAmax, 1));
      CHECK(amax == 0.0f);
    }
  }
}

TEST_CASE("the likeliest choice is the answer, by three measures") {
  EvalConfig config = two_sources();
  const ScratchDirectory folder;
  config.multiple_choice = folder / "questions.jsonl";
  {
    std::ofstream file(config.multiple_choice);
    file << R"({"question": "1 + 1 = ", "choices": ["2", "11"], "answer": 0})"
         << "\n\n"
         << R"({"question": [256, 65], "choices": ["abc", [66, 257]], "answer": "B", "id": 7})"
         << "\n";
    // Long choices are less likely as a whole; special tokens have no bytes.
    for (int i = 0; i < 30; ++i) {
      file << R"({"question": "q)" << i << R"(", "choices": [[)" << i % 7 + 60
           << (i % 2 == 0 ? ", 257, 258" : "") << "], [" << i + 97 << ", " << i % 11 + 40 << ", "
           << i % 3 + 97 << R"(]], "answer": )" << i % 3 % 2 << "}\n";
    }
  }
  Fixture fixture("fp32", config);
  const ChoiceAccuracy found = *fixture.evaluate().multiple_choice;
  CHECK(found.questions == 32);

  const std::vector<Question> questions =
      read_questions(config.multiple_choice, Vocabulary::bytes(), 272).questions;
  CHECK(questions[0].prompt.front() == ByteTokenizer::kBegin);
  CHECK(questions[1].prompt == std::vector<std::int32_t>{256, 65});
  CHECK(questions[1].answer == 1);
  CHECK(questions[1].choices[1].bytes == 1);
  Scorer scorer(*fixture.backend, *fixture.transformer, ByteTokenizer::kPadding);
  double sum = 0, per_token = 0, per_byte = 0;
  for (const Question& question : questions) {
    std::vector<double> totals;
    for (const Choice& choice : question.choices) {
      std::vector<std::int32_t> tokens = question.prompt;
      tokens.insert(tokens.end(), choice.tokens.begin(), choice.tokens.end());
      double total = 0;
      const ScoredText text{tokens, static_cast<std::int64_t>(question.prompt.size())};
      const std::vector<std::vector<double>> scores = scorer.score(StepContext{}, {text});
      for (const double value : scores.front()) total += value;
      totals.push_back(total);
    }
    const std::size_t other = 1 - question.answer;
    const Choice &right = question.choices[question.answer], &wrong = question.choices[other];
    const auto wins = [&](double right_size, double wrong_size) {
      return totals[question.answer] / right_size > totals[other] / wrong_size ? 1.0 / 32 : 0.0;
    };
    sum += wins(1, 1);
    per_token +=
        wins(static_cast<double>(right.tokens.size()), static_cast<double>(wrong.tokens.size()));
    per_byte += wins(static_cast<double>(right.bytes), static_cast<double>(wrong.bytes));
  }
  CHECK(found.sum == sum);
  CHECK(found.per_token == per_token);
  CHECK(found.per_byte == per_byte);
  CHECK(found.sum != found.per_token);
  CHECK(found.per_token != found.per_byte);
}

TEST_CASE("questions that do not fit are refused with their line") {
  CHECK(refusal("").find("no questions") != std::string::npos);
  const auto has = [](const std::string& text, const std::string& what) {
    INFO(refusal(text));
    CHECK(refusal(text).find(what) != std::string::npos);
  };
  has("{", "q.jsonl:1");
  has("\n[1]", "q.jsonl:2: not an object");
  has(R"({"choices": ["a", "b"], "answer": 0})", "\"question\" is neither");
  has(R"({"question": "", "choices": ["a"], "answer": 0})", "at least two");
  has(R"({"question": "q", "choices": ["a", ""], "answer": 0})", "an empty one");
  has(R"({"question": "q", "choices": ["a", 3], "answer": 0})", "neither a string");
  has(R"({"question": "q", "choices": ["a", [272]], "answer": 0})",
      "272, which is no token of 272");
  has(R"({"question": "q", "choices": ["a", [-1]], "answer": 0})", "-1, which is no token");
  has(R"({"question": "q", "choices": ["a", [1.5]], "answer": 0})", "1.5, which is no token");
  has(R"({"question": [], "choices": ["a", "b"], "answer": 0})", "'question' is empty");
  for (const std::string answer : {"2", "-1", "\"C\"", "\"a\"", "null", "0.0"}) {
    has(R"({"question": "q", "choices": ["a", "b"], "answer": )" + answer + "}", "'answer' is not");
  }
  CHECK(refusal(R"({"question": "q", "choices": ["a", "b"], "answer": "B"})") == "accepted");
  const Vocabulary opaque = Vocabulary::opaque(272, 0, 1, "0123456789abcdef");
  CHECK(refusal(R"({"question": "q", "choices": ["a", "b"], "answer": 0})", opaque)
            .find("accepted: token ids") != std::string::npos);
  REQUIRE_THROWS_WITH(read_questions("/nonexistent/q.jsonl", opaque, 4),
                      Catch::Contains("cannot open: No such file"));
}

TEST_CASE("questions longer than a sequence are refused before anything is computed") {
  EvalConfig config = two_sources();
  const ScratchDirectory folder;
  config.multiple_choice = folder / "q.jsonl";
  const auto text = [&](std::int64_t tokens) {  // the beginning of a document is one more
    std::ofstream(config.multiple_choice)
        << R"({"question": ")" << std::string(static_cast<std::size_t>(tokens - 3), 'q')
        << R"(", "choices": ["a", "bc"], "answer": 0})"
        << "\n";
  };
  text(kLength + 1);
  CHECK(Fixture("bf16", config).evaluate().multiple_choice->questions == 1);
  text(kLength + 2);
  CHECK_THROWS_WITH(Fixture("bf16", config), Catch::Contains("question 1 with a choice has"));
}

TEST_CASE("a model whose losses are no numbers answers no question") {
  EvalConfig config = two_sources();
  const ScratchDirectory folder;
  config.multiple_choice = folder / "q.jsonl";
  std::ofstream(config.multiple_choice)
      << R"({"question": "q", "choices": ["a", "b"], "answer": 0})"
      << "\n";
  Fixture fixture("fp32", config);
  for (const Parameter& parameter : fixture.parameters.all()) {
    const std::vector<float> values(static_cast<std::size_t>(parameter.master().size()), NAN);
    fixture.parameters.upload(parameter, 0, values);
  }
  const ChoiceAccuracy found = *fixture.evaluate().multiple_choice;
  CHECK(found.sum == 0.0);
  CHECK(found.per_token == 0.0);
  CHECK(found.per_byte == 0.0);
}

TEST_CASE("a raised flag ends an evaluation, which can be made again with the same result") {
  std::atomic<bool> stop{false};
  EvalConfig config = with_rollout("");
  config.pass_at_k = PassAtKConfig{};
  Fixture fixture("te_delayed", config);
  Evaluator evaluator(*fixture.backend, fixture.parameters, *fixture.transformer, config,
                      fixture.data, fixture.inputs, &stop);
  const Evaluation whole = evaluator.evaluate(StepContext{}, true);
  stop = true;
  CHECK_THROWS_AS(evaluator.evaluate(StepContext{}, true), EvaluationStopped);
  stop = false;
  const Evaluation again = evaluator.evaluate(StepContext{}, true);
  CHECK(again.held_out.mean == whole.held_out.mean);
  CHECK(score(again, "pass@1") == score(whole, "pass@1"));
}

TEST_CASE("decoding and scoring end by the flag, between two forward passes") {
  std::atomic<bool> stop{false};
  Fixture fixture("bf16", two_sources());
  fixture.transformer->prepare_weights(StepContext{});
  Generator generator(*fixture.backend, *fixture.transformer, 2, 32, &stop);
  const std::vector<Prompt> prompts = {{{1, 2, 3}, 0, 0}, {{4, 5}, 1, 0}, {{6}, 2, 0}};
  GenerationConfig config;
  config.sampling.temperature = 0.0;
  config.max_new_tokens = 5;
  const auto whole = generator.generate(StepContext{}, prompts, config);
  Scorer scorer(*fixture.backend, *fixture.transformer, 0, &stop);
  const std::vector<ScoredText> texts = {{{1, 2, 3, 4}, 1}};
  const auto scores = scorer.score(StepContext{}, texts);
  stop = true;
  CHECK_THROWS_AS(generator.generate(StepContext{}, prompts, config), EvaluationStopped);
  CHECK_THROWS_AS(scorer.score(StepContext{}, texts), EvaluationStopped);
  stop = false;
  const auto again = generator.generate(StepContext{}, prompts, config);
  for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(again[i].tokens == whole[i].tokens);
  CHECK(scorer.score(StepContext{}, texts) == scores);
}
