// Generation has the bits of training where recipes promise it, and what breaks that is noticed.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/recording/observed_backend.hpp"
#include "src/evaluation/certificate.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kLength = 96, kTokens = 10;

/// `rollout` is a recipe for generation of its own, or empty.
class Fixture {
 public:
  explicit Fixture(const std::string& recipe, const std::string& rollout = "",
                   const ModelConfig& model = small_model())
      : cpu_(make_backend("cpu", 2)),
        backend(*cpu_),
        recipe_(load_recipe(recipe)),
        parameters_(backend, model, OptimizerConfig{}, recipe_.activation_dtype,
                    Purpose::inference) {
    parameters_.initialize(7);
    training_ = std::make_unique<Transformer>(backend, parameters_, model, recipe_,
                                              BatchShape{2, kLength, {}}, Purpose::training);
    if (!rollout.empty()) {
      generation_ = make_rollout_model(backend, parameters_, *training_, load_recipe(rollout));
    }
  }

  Certificate certify(const std::vector<DecodingWay>& ways, std::size_t sequences = 64) {
    CertificateConfig config;
    SamplingConfig greedy;
    greedy.temperature = 0.0;
    config.samplings = {SamplingConfig{}, greedy};
    config.max_new_tokens = kTokens;
    config.end = ByteTokenizer::kEnd;
    config.padding = ByteTokenizer::kPadding;
    config.ways = ways;
    config.bucket = 4;
    return fp8lab::certify(backend, *training_, generation_ ? *generation_ : *training_,
                           StepContext{}, prompts(sequences), config, {});
  }

  static std::vector<Prompt> prompts(std::size_t count) {
    std::vector<Prompt> result;
    for (std::uint32_t i = 0; i < count; ++i) {
      Prompt prompt;
      for (std::uint32_t j = 0; j < 3 + 11 * (i % 6); ++j) {
        prompt.tokens.push_back(static_cast<std::int32_t>((i * 37 + j * 11) % 256));
      }
      prompt.problem = i;
      result.push_back(prompt);
    }
    return result;
  }

 private:
  std::unique_ptr<Backend> cpu_;

 public:
  ObservedBackend backend;

 private:
  Recipe recipe_;
  Parameters parameters_;
  std::unique_ptr<Transformer> training_, generation_;
};

const std::vector<DecodingWay> kAll = {{1, 0}, {8, 0}, {64, 0}, {64, 16}, {8, 1}, {1, 7}};
const std::vector<DecodingWay> kFew = {{1, 0}, {5, 0}, {5, 7}};

/// What one operation writes.
using Change = std::function<void(const AnyOperation&)>;
class ChangingObserver final : public OperationObserver {
 public:
  explicit ChangingObserver(Change change) : change_(std::move(change)) {}
  void after(const AnyOperation& op, const Label&) override { change_(op); }

 private:
  Change change_;
};

/// The certificate of infir2 when `change` happens after every operation.
Certificate certify_changed(const Change& change) {
  Fixture fixture("infir2");
  ChangingObserver observer(change);
  fixture.backend.observe(&observer);
  return fixture.certify(kFew, 6);
}

bool has_reason(const Expectation& expectation, const std::string& words) {
  for (const std::string& reason : expectation.reasons) {
    if (reason.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("generation has the bits of training under every recipe local to a token") {
  const std::string recipe =
      GENERATE("bf16", "fp32", "torchao_rowwise", "infir2", "deepseek_v3", "mxfp8", "te_delayed");
  INFO(recipe);
  const Certificate found = Fixture(recipe).certify(kAll);
  CHECK(found.pair.is_exact());
  CHECK(found.generation.is_exact());
  CHECK(found.holds());
  CHECK(found.is_exact());
  CHECK(found.sequences == 128);
  REQUIRE(found.training.size() == kAll.size());
  REQUIRE(found.whole.size() == kAll.size());
  for (const auto* part : {&found.training, &found.whole}) {
    for (const Comparison& row : *part) {
      CHECK(row.must_be_exact);
      CHECK(row.gap.tokens > 500);
      CHECK(row.gap.different == 0);
      CHECK(row.chosen_otherwise == 0);
      CHECK(row.spread.zero == row.gap.tokens);
      CHECK(!row.first);
    }
  }
  // The tiles of attention start with the sequence.
  CHECK(found.packed.gap.different > 0);
  CHECK(!found.packed.must_be_exact);
}

TEST_CASE("every kind of model generates as it trains") {
  const std::string family = GENERATE("qwen3", "biased", "gpt2");
  ModelConfig model = family == "qwen3"    ? qwen3_model()
                      : family == "biased" ? biased_model()
                                           : gpt2_model();
  model.max_position_embeddings = 128;
  const Certificate found = Fixture("infir2", "", model).certify(kFew, 6);
  CHECK(found.pair.is_exact());
  CHECK(found.is_exact());
}

TEST_CASE("numerics of the backward pass are no concern of generation") {
  const Certificate found = Fixture("infir2", "infir2_e5m2").certify(kFew, 6);
  CHECK(found.pair.is_exact());
  CHECK(found.is_exact());
}

TEST_CASE("another recipe for generation leaves gaps, and each keeps its own bits") {
  const Certificate found = Fixture("bf16", "infir2").certify(kFew, 6);
  CHECK(has_reason(found.pair, "fprop.x is bf16"));
  CHECK(has_reason(found.pair, "the GEMM fprop is sm90_bf16"));
  CHECK(found.generation.is_exact());
  CHECK(found.holds());
  CHECK(!found.is_exact());
  for (const Comparison& row : found.training) {
    CHECK(row.gap.different > row.gap.tokens / 2);
    CHECK(row.gap.largest > 0);
    CHECK(row.gap.k3 > 0);
    CHECK(row.spread.quantiles.back() > 0);
    REQUIRE(row.first);
    CHECK(row.first->reference != row.first->rollout);
  }
  for (const Comparison& row : found.whole) CHECK(row.is_exact());
  CHECK(found.worst().reference == "training");
}

TEST_CASE("scales that tokens share promise nothing, and tokens differ") {
  const auto [recipe, reason] = GENERATE(
      table<std::string, std::string>({{"e4m3_tensor", "one scale is taken from the whole tensor"},
                                       {"nvfp4", "have a factor of the whole tensor"}}));
  INFO(recipe);
  const Certificate found = Fixture(recipe).certify(kFew, 6);
  CHECK(has_reason(found.pair, reason));
  CHECK(has_reason(found.pair, "fprop.x"));
  CHECK(has_reason(found.generation, "(layers.0.attention.qkv and "));
  CHECK(!found.is_exact());
  CHECK(found.holds());
  CHECK(found.whole.back().gap.different > 0);
}

TEST_CASE("one wrong position in the cache is noticed") {
  int calls = 0;
  const Certificate found = certify_changed([&](const AnyOperation& any) {
    const auto* const op = std::get_if<const ops::AttentionCached*>(&any);
    if (op == nullptr || ++calls != 6) return;
    const TensorView& keys = (*op)->k_cache;  // of the first sequence, which batch 1 decodes
    std::swap_ranges(keys.row<std::uint16_t>(0), keys.row<std::uint16_t>(0) + keys.cols,
                     keys.row<std::uint16_t>(1));
  });
  CHECK(!found.holds());
  CHECK(found.worst().fails());
  CHECK(found.training.front().fails());
  CHECK(found.whole.front().fails());
  CHECK(found.training.front().first->position > 0);
  // It happened once, in the first way, which chose its tokens by it.
  CHECK(found.training.back().gap.different == 0);
  CHECK(found.training.back().chosen_otherwise > 0);
}

TEST_CASE("a scale that depends on the batch is noticed where that batch is") {
  const Certificate found = certify_changed([](const AnyOperation& any) {
    for (const OperationTensor& output : outputs_of(any)) {
      if (output.name == "scales" && output.operand->rows == 5) output.view.row<float>(0)[0] *= 2;
    }
  });
  CHECK(!found.holds());
  CHECK(!found.training.front().fails());  // batch 1 has no such pass
  CHECK(found.training[1].fails());
  CHECK(found.whole[1].fails());
}

TEST_CASE("a difference of training alone is noticed between it and generation") {
  const Certificate found = certify_changed([](const AnyOperation& any) {
    const auto* const op = std::get_if<const ops::AttentionForward*>(&any);
    if (op == nullptr) return;
    auto* const first = (*op)->out.row<std::uint16_t>(4);
    first[0] = static_cast<std::uint16_t>(first[0] ^ 0x4000u);
  });
  CHECK(!found.holds());
  CHECK(found.training.front().fails());
}

TEST_CASE("ways that do not fit are refused") {
  Fixture fixture("bf16");
  REQUIRE_THROWS_WITH(fixture.certify({{7, 0}}, 6), Catch::Contains("there are 6 sequences"));
  REQUIRE_THROWS_WITH(fixture.certify({{200, 0}}, 300), Catch::Contains("takes 192 tokens"));
}

TEST_CASE("gaps are counted by bits, by size and by position") {
  const double infinite = std::numeric_limits<double>::infinity();
  const std::vector<RolloutTokens> tokens = {{{-1.0, -2.0, -3.0, -0.0}, {-1.0, -2.5, -3.0, 0.0}},
                                             {{-1.0, -infinite}, {-1.0 + 2e-6, -1.0}}};
  CHECK(first_difference(tokens[0]) == 1);
  CHECK(first_difference(tokens[1]) == 0);
  CHECK(first_difference({{-1.0}, {-1.0}}) == -1);
  const RolloutGap gap = measure_gap(tokens, 2.0, 2);
  CHECK(gap.tokens == 6);
  CHECK(gap.different == 4);  // zeros of other signs are other bits
  REQUIRE(gap.buckets.size() == 2);
  CHECK(gap.buckets[0].different == 3);
  CHECK(gap.buckets[1].different == 1);
  CHECK(gap.buckets[1].largest == 0.0);
  const GapSpread spread = spread_of(tokens);
  CHECK(spread.zero == 3);
  CHECK(spread.counts == std::array<std::int64_t, 9>{0, 0, 1, 0, 0, 0, 0, 1, 1});
  CHECK(spread.quantiles[0] == 0.0);
  CHECK(spread.quantiles[1] == infinite);
  CHECK(spread_of({}).quantiles[3] == 0.0);
  const GapSpread half = spread_of({{{0, 0, 0, 0}, {0, 0, 0.5, 0.25}}});
  CHECK(half.quantiles == std::array<double, 4>{0.0, 0.5, 0.5, 0.5});
}
