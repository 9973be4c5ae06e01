// Sampling, generation with a cache, likelihoods of given tokens, and what is made of them.
#include <catch2/catch.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/evaluation/answers.hpp"
#include "src/evaluation/evaluator.hpp"
#include "tests/scratch_directory.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kLength = 96;

/// A model without training, of either purpose.
struct Fixture {
  explicit Fixture(const std::string& recipe_name, const ModelConfig& shape = small_model(),
                   Purpose purpose = Purpose::inference, std::int64_t sequences = 1)
      : model(shape),
        recipe(load_recipe(recipe_name)),
        backend(make_backend("cpu", 2)),
        parameters(*backend, model, OptimizerConfig{}, recipe.activation_dtype) {
    parameters.initialize(7);
    transformer = std::make_unique<Transformer>(*backend, parameters, model, recipe,
                                                BatchShape{sequences, kLength, {}}, purpose);
    transformer->prepare_weights(StepContext{});
  }

  std::vector<Completion> generate(const std::vector<Prompt>& prompts,
                                   const GenerationConfig& config, std::int64_t together) {
    Generator generator(*backend, *transformer, together, kLength);
    return generator.generate(StepContext{}, prompts, config);
  }

  ModelConfig model;
  Recipe recipe;
  std::unique_ptr<Backend> backend;
  Parameters parameters;
  std::unique_ptr<Transformer> transformer;
};

std::vector<Prompt> some_prompts() {
  std::vector<Prompt> prompts;
  for (std::uint32_t i = 0; i < 5; ++i) {
    Prompt prompt;
    for (std::uint32_t j = 0; j < 3 + 11 * i; ++j) {
      prompt.tokens.push_back(static_cast<std::int32_t>((i * 37 + j * 11) % 256));
    }
    prompt.problem = i;
    prompts.push_back(prompt);
  }
  return prompts;
}

std::vector<std::vector<std::int32_t>> tokens_of(const std::vector<Completion>& completions) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const Completion& completion : completions) tokens.push_back(completion.tokens);
  return tokens;
}

SamplingConfig sampling(double temperature, std::int64_t top_k = 0, double top_p = 1.0) {
  SamplingConfig config;
  config.temperature = temperature;
  config.top_k = top_k;
  config.top_p = top_p;
  return config;
}

/// How often each token is drawn, of `draws`.
std::vector<double> frequencies(const std::vector<float>& logits, const SamplingConfig& config,
                                std::uint32_t draws) {
  std::vector<double> shares(logits.size(), 0.0);
  for (std::uint32_t i = 0; i < draws; ++i) {
    shares[static_cast<std::size_t>(choose_token(logits, config, {9, i, 1, 2}))] += 1.0 / draws;
  }
  return shares;
}

}  // namespace

TEST_CASE("tokens are drawn in proportion to their weights") {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, NAN};
  for (const double temperature : {1.0, 0.5, 3.0}) {
    std::vector<double> expected;
    for (std::size_t i = 0; i < 4; ++i) {
      expected.push_back(std::exp(static_cast<double>(logits[i]) / temperature));
    }
    const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
    const std::vector<double> shares = frequencies(logits, sampling(temperature), 20000);
    for (std::size_t i = 0; i < 4; ++i) {
      const double p = expected[i] / sum;
      // Five standard deviations of the count.
      CHECK(std::fabs(shares[i] - p) < 5.0 * std::sqrt(p * (1 - p) / 20000));
    }
    CHECK(shares[4] == 0.0);
  }
}

TEST_CASE("logits of minus infinity get nothing, those of infinity everything") {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const std::vector<double> shares =
      frequencies({5.0f, 1.0f, -kInfinite, 4.0f, -3000.0f}, sampling(1.0), 4000);
  const double e = std::exp(1.0), sum = e + 1 + std::exp(-3.0);
  CHECK(shares[0] == Approx(e / sum).margin(0.04));
  CHECK(shares[3] == Approx(1 / sum).margin(0.04));
  CHECK(shares[2] + shares[4] == 0.0);
  CHECK(frequencies({5.0f, 1.0f, 4.0f}, sampling(1e-6), 10)[0] == Approx(1.0));
  const std::vector<double> two =
      frequencies({kInfinite, 9.0f, kInfinite, -kInfinite}, sampling(1.0), 4000);
  CHECK(two[0] == Approx(0.5).margin(0.04));
  CHECK(two[0] + two[2] == Approx(1.0));
  const std::vector<double> none = frequencies({-kInfinite, -kInfinite}, sampling(1.0), 4000);
  CHECK(none[0] == Approx(0.5).margin(0.04));
}

TEST_CASE("top_k and top_p leave out the rest") {
  const std::vector<float> logits = {0.0f, 1.0f, 1.0f, 1.0f, -9.0f};
  const auto drawn = [&](const SamplingConfig& config) {
    std::string kept;
    const std::vector<double> shares = frequencies(logits, config, 2000);
    for (const double share : shares) kept += share > 0 ? '1' : '0';
    return kept;
  };
  CHECK(drawn(sampling(1.0, 2)) == "01100");  // of equals the lower ids
  CHECK(drawn(sampling(1.0, 1)) == "01000");
  CHECK(drawn(sampling(1.0, 99)).substr(0, 4) == "1111");
  // Weights 0.368, 1, 1, 1: shares of 0.297 after the first.
  CHECK(drawn(sampling(1.0, 0, 0.25)) == "01000");
  CHECK(drawn(sampling(1.0, 0, 0.58)) == "01100");
  CHECK(drawn(sampling(1.0, 0, 0.62)) == "01110");
  CHECK(drawn(sampling(1.0, 0, 0.95)) == "11110");
  const std::vector<double> halves = frequencies(std::vector<float>(4), sampling(1, 0, 0.5), 500);
  CHECK(halves[1] > 0);  // two of four equals are exactly the share
  CHECK(halves[2] == 0);
  CHECK(drawn(sampling(1.0, 2, 0.9)) == "01100");  // the share is that of what top_k kept
}

TEST_CASE("a draw depends on its key alone, and temperature 0 on none") {
  const std::vector<float> logits(50, 0.0f);
  const DrawKey key{1, 2, 3, 4};
  const auto draw = [&](const DrawKey& k) { return choose_token(logits, sampling(1.0), k); };
  CHECK(draw(key) == draw(key));
  // Every part of the key changes draws: ten values of it do not all give one of 50 tokens.
  for (const auto& vary :
       std::vector<DrawKey (*)(std::uint32_t)>{[](std::uint32_t i) {
                                                 return DrawKey{i, 2, 3, 4};
                                               },
                                               [](std::uint32_t i) {
                                                 return DrawKey{std::uint64_t{i} << 40, 2, 3, 4};
                                               },
                                               [](std::uint32_t i) {
                                                 return DrawKey{1, i, 3, 4};
                                               },
                                               [](std::uint32_t i) {
                                                 return DrawKey{1, 2, i, 4};
                                               },
                                               [](std::uint32_t i) {
                                                 return DrawKey{1, 2, 3, i};
                                               }}) {
    int same = 0;
    for (std::uint32_t i = 0; i < 10; ++i) same += draw(vary(i)) == draw(vary(10)) ? 1 : 0;
    CHECK(same < 5);
  }
  const std::vector<float> peaks = {1.0f, 3.0f, 3.0f, NAN};
  CHECK(choose_token(peaks, sampling(0.0), key) == 1);
  CHECK(choose_token(peaks, sampling(0.0), key, 1) == 2);
  CHECK(choose_token(peaks, sampling(1.0, 1), key, 1) == 2);
  REQUIRE_THROWS_AS(choose_token(std::vector<float>{NAN}, sampling(1.0), key), RuntimeFailure);
  REQUIRE_THROWS_AS(choose_token(std::vector<float>{1.0f}, sampling(0.0), key, 0), RuntimeFailure);
  CHECK(choose_token(std::vector<float>{0.0f, INFINITY}, sampling(1.0), key) == 1);
}

TEST_CASE("completions do not depend on what is decoded beside them") {
  const std::string recipe = GENERATE("bf16", "infir2", "mxfp8");
  const double temperature = GENERATE(0.0, 1.5);
  GenerationConfig config{sampling(temperature, 40), 30, ByteTokenizer::kEnd, true};
  Fixture wide(recipe), narrow(recipe, small_model(), Purpose::training, 2);
  const std::vector<Prompt> prompts = some_prompts();
  const std::vector<Completion> together = wide.generate(prompts, config, 5);
  const std::vector<Completion> alone = narrow.generate(prompts, config, 2);
  CHECK(tokens_of(together) == tokens_of(alone));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CHECK(together[i].log_probabilities == alone[i].log_probabilities);
    CHECK(!together[i].tokens.empty());
  }
}

TEST_CASE("prompts in chunks give the same bits where tokens are quantized by themselves") {
  const auto [recipe, is_local] = GENERATE(
      table<std::string, bool>({{"bf16", true}, {"infir2", true}, {"e4m3_tensor", false}}));
  Fixture fixture(recipe);
  const std::vector<Prompt> prompts = some_prompts();
  GenerationConfig config{sampling(0.0), 4, ByteTokenizer::kEnd, true};
  const std::vector<Completion> whole = fixture.generate(prompts, config, 3);
  for (const std::int64_t chunk : {1, 5}) {
    config.prefill_chunk = chunk;
    const std::vector<Completion> pieces = fixture.generate(prompts, config, 3);
    bool same = tokens_of(pieces) == tokens_of(whole);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      same = same && pieces[i].log_probabilities == whole[i].log_probabilities;
    }
    CHECK(same == is_local);
  }
}

TEST_CASE("a given completion is decoded, whatever would be chosen") {
  Fixture fixture("infir2");
  std::vector<Prompt> prompts = some_prompts();
  const GenerationConfig config{sampling(0.0), 6, -1, true};
  const std::vector<Completion> free = fixture.generate(prompts, config, 3);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CHECK(free[i].chosen_otherwise == 0);
    prompts[i].given = free[i].tokens;
  }
  prompts[1].given[2] = (prompts[1].given[2] + 1) % 256;
  prompts[3].given.resize(2);
  prompts[4].given.clear();
  const std::vector<Completion> given = fixture.generate(prompts, config, 3);
  Scorer scorer(*fixture.backend, *fixture.transformer, ByteTokenizer::kPadding);
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(given[i].tokens == prompts[i].given);
    ScoredText text{prompts[i].tokens, static_cast<std::int64_t>(prompts[i].tokens.size())};
    text.tokens.insert(text.tokens.end(), given[i].tokens.begin(), given[i].tokens.end());
    CHECK(scorer.score(StepContext{}, {text}).front() == given[i].log_probabilities);
  }
  CHECK(given[0].chosen_otherwise == 0);
  CHECK(given[1].chosen_otherwise >= 1);
  CHECK(given[4].tokens == free[4].tokens);
  prompts[0].given = {272};
  REQUIRE_THROWS_WITH(fixture.generate(prompts, config, 3),
                      Catch::Contains("token 272 is not in the vocabulary"));
}

TEST_CASE("greedy completions are those of full forward passes") {
  Fixture fixture("infir2", qwen3_model());
  const std::vector<Prompt> prompts = some_prompts();
  const std::vector<Completion> found =
      fixture.generate(prompts, {sampling(0.0), 12, ByteTokenizer::kEnd, true}, 3);
  Scorer scorer(*fixture.backend, *fixture.transformer, ByteTokenizer::kPadding);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::vector<std::int32_t> tokens = prompts[i].tokens;
    for (const std::int32_t token : found[i].tokens) {
      Batch batch = Batch::padded(1, kLength, ByteTokenizer::kPadding);
      std::copy(tokens.begin(), tokens.end(), batch[kTokens].begin());
      std::iota(batch[kPositions].begin(), batch[kPositions].end(), 0);
      fixture.transformer->load(batch);
      fixture.transformer->forward(StepContext{});
      std::vector<std::int32_t> best(static_cast<std::size_t>(kLength));
      fixture.backend->download(best.data(), fixture.transformer->argmax());
      REQUIRE(token == best[tokens.size() - 1]);
      tokens.push_back(token);
    }
    const ScoredText text{tokens, static_cast<std::int64_t>(prompts[i].tokens.size())};
    CHECK(scorer.score(StepContext{}, {text}).front() == found[i].log_probabilities);
  }
}

TEST_CASE("completions end where they should") {
  Fixture fixture("bf16");
  const std::vector<Prompt> prompts = some_prompts();
  const auto generate = [&](const SamplingConfig& how, std::int64_t most, std::int32_t end) {
    return fixture.generate(prompts, {how, most, end, false}, 4);
  };
  const std::vector<Completion> free = generate(sampling(0.0), 20, -1);
  const std::int32_t end = free[1].tokens[6];
  const auto first = std::find(free[1].tokens.begin(), free[1].tokens.end(), end);
  const std::vector<Completion> ended = generate(sampling(0.0), 20, end);
  CHECK(ended[1].ended);
  CHECK(ended[1].tokens == std::vector<std::int32_t>(free[1].tokens.begin(), first + 1));
  SamplingConfig late = sampling(0.0);
  late.min_new_tokens = 9;
  const std::vector<Completion> later = generate(late, 20, end);
  CHECK(later[1].tokens.size() >= 10);
  CHECK(std::find(later[1].tokens.begin(), later[1].tokens.begin() + 9, end) ==
        later[1].tokens.begin() + 9);
  for (const Completion& completion : generate(sampling(0.0), 500, -1)) {
    CHECK(!completion.ended);
    CHECK(completion.tokens.size() > 20);  // as many as the cache holds
  }
  REQUIRE_THROWS_WITH(fixture.generate({{{}, 3, 0}}, {}, 1), Catch::Contains("prompt 3 has 0"));
  REQUIRE_THROWS_WITH(fixture.generate({{{5, 272}, 3, 0}}, {}, 1),
                      Catch::Contains("token 272 is not in the vocabulary of 272"));
  REQUIRE_THROWS_WITH(fixture.generate({{std::vector<std::int32_t>(kLength, 1), 0, 0}}, {}, 1),
                      Catch::Contains("accepted: 1 to 95"));
}

TEST_CASE("packed texts have the log-probabilities of single ones") {
  Fixture fixture("deepseek_v3");
  Scorer scorer(*fixture.backend, *fixture.transformer, ByteTokenizer::kPadding);
  std::vector<ScoredText> texts;
  for (const Prompt& prompt : some_prompts()) texts.push_back({prompt.tokens, 1});
  texts[2].first = 20;
  const std::vector<std::vector<double>> together = scorer.score(StepContext{}, texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    CHECK(scorer.score(StepContext{}, {texts[i]}).front() == together[i]);
    CHECK(together[i].size() == texts[i].tokens.size() - static_cast<std::size_t>(texts[i].first));
  }
  REQUIRE_THROWS_WITH(scorer.score(StepContext{}, {{{1, 2}, 2}}), Catch::Contains("2 tokens"));
  REQUIRE_THROWS_WITH(scorer.score(StepContext{}, {{std::vector<std::int32_t>(98, 1), 1}}),
                      Catch::Contains("does not fit a sequence of 96"));
}

TEST_CASE("pass@k is the share of k-subsets that hold a right sample") {
  for (std::int64_t n = 1; n <= 10; ++n) {
    for (std::int64_t right = 0; right <= n; ++right) {
      for (std::int64_t k = 1; k <= n; ++k) {
        int subsets = 0, good = 0;
        for (unsigned set = 0; set < (1u << n); ++set) {
          if (__builtin_popcount(set) != k) continue;
          ++subsets;
          good += (set & ((1u << right) - 1u)) != 0 ? 1 : 0;
        }
        CHECK(pass_at_k(n, right, k) == Approx(static_cast<double>(good) / subsets).margin(1e-14));
      }
    }
  }
}

TEST_CASE("the gap between two numerics is measured token by token") {
  const std::vector<RolloutTokens> completions = {{{-1.0, -2.0, -3.0}, {-1.5, -2.0, -2.0}},
                                                  {{-0.5}, {-0.25}}};
  const RolloutGap gap = measure_gap(completions, 2.0, 2);
  CHECK(gap.tokens == 4);
  CHECK(gap.mean == Approx((-0.5 + 0.0 + 1.0 + 0.25) / 4));
  CHECK(gap.largest == 1.0);
  const auto k3 = [](double d) { return std::exp(d) - 1.0 - d; };
  CHECK(gap.k3 == Approx((k3(-0.5) + k3(0) + k3(1) + k3(0.25)) / 4));
  CHECK(gap.clipped_share == 0.25);  // e^1 > 2
  CHECK(gap.clipped_mean == Approx((std::exp(-0.5) + 1.0 + 2.0 + std::exp(0.25)) / 4));
  REQUIRE(gap.buckets.size() == 2);
  CHECK(gap.buckets[0].tokens == 3);
  CHECK(gap.buckets[0].k3 == Approx((k3(-0.5) + k3(0.25)) / 3));
  CHECK(gap.buckets[1].first == 2);
  CHECK(gap.buckets[1].k3 == Approx(k3(1)));
  CHECK(measure_gap({}, 2.0, 4).tokens == 0);
}
