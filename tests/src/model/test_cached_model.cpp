// A model whose tokens arrive in pieces gives the logits of one forward pass, bit for bit, under
// every recipe whose activations are quantized token by token.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

constexpr std::int64_t kLength = 70, kSequences = 3;

Batch random_tokens(const ModelConfig& model) {
  Batch batch = Batch::padded(kSequences, kLength, 0);
  std::mt19937 generator(11);
  for (std::size_t i = 0; i < batch[kTokens].size(); ++i) {
    batch[kTokens][i] =
        static_cast<std::int32_t>(generator() % static_cast<unsigned>(model.vocab_size));
    batch[kPositions][i] = static_cast<std::int32_t>(i % kLength);
  }
  batch.trained_tokens = 1;
  return batch;
}

/// Random pieces of the sequences: a prompt beside single tokens, some sequences waiting, and
/// logits of about half of the tokens.
class Pieces {
 public:
  explicit Pieces(const Batch& batch) : batch_(batch) {}

  /// Nothing to do any more when it is empty. `rows` are those of the batch whose logits come.
  CachedBatch next(std::vector<std::int64_t>& rows) {
    CachedBatch piece;
    rows.clear();
    piece.query_start = {0};
    for (std::int64_t b = 0; b < kSequences; ++b) {
      std::int32_t& done = done_[static_cast<std::size_t>(b)];
      piece.cached.push_back(done);
      const unsigned draw = generator_() % 4;
      const std::int64_t most = draw == 0 ? 0 : draw == 1 ? 30 : 1;
      const std::int64_t count = std::min<std::int64_t>(most, kLength - done);
      for (std::int64_t i = 0; i < count; ++i, ++done) {
        const std::int64_t row = b * kLength + done;
        if (generator_() % 2 == 0) {
          piece.wanted.push_back(static_cast<std::int32_t>(piece[kTokens].size()));
          rows.push_back(row);
        }
        piece[kTokens].push_back(batch_[kTokens][static_cast<std::size_t>(row)]);
        piece[kPositions].push_back(done);
      }
      piece.query_start.push_back(static_cast<std::int32_t>(piece[kTokens].size()));
    }
    return piece;
  }
  bool done() const { return std::count(done_.begin(), done_.end(), kLength) == kSequences; }

 private:
  const Batch& batch_;
  std::mt19937 generator_{5};
  std::vector<std::int32_t> done_ = std::vector<std::int32_t>(kSequences, 0);
};

/// Rows whose logits differ from those of the full pass, of `total` compared.
struct Outcome {
  int different = 0, total = 0;
};

Outcome compare(const std::string& backend, const ModelConfig& model, const Recipe& recipe) {
  ModelAtWork full(backend, model, recipe, kLength, kSequences);
  const Batch batch = random_tokens(model);
  full.load(batch);
  full.transformer->prepare_weights(StepContext{});
  full.transformer->forward(StepContext{});
  const auto bytes = [](Backend& b, const TensorView& logits) {
    std::vector<std::byte> values(static_cast<std::size_t>(logits.size()) * size_of(logits.dtype));
    b.download(values.data(), logits);
    return values;
  };
  const std::vector<std::byte> expected = bytes(*full.backend, full.transformer->logits());
  const std::size_t width = expected.size() / static_cast<std::size_t>(kSequences * kLength);
  Transformer decoder(*full.backend, full.parameters, model, recipe, BatchShape{2, kLength, {}},
                      Purpose::inference);
  const KvCache cache = decoder.make_cache(kSequences, kLength);
  decoder.prepare_weights(StepContext{});
  Pieces pieces(batch);
  Outcome outcome;
  std::vector<std::int64_t> rows;
  while (!pieces.done()) {
    const CachedBatch piece = pieces.next(rows);
    if (piece[kTokens].empty()) continue;
    decoder.load(piece, cache);
    decoder.forward(StepContext{});
    if (rows.empty()) continue;
    const std::vector<std::byte> found = bytes(*full.backend, decoder.logits());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto* got = found.data() + i * width;
      const auto* want = expected.data() + static_cast<std::size_t>(rows[i]) * width;
      ++outcome.total;
      outcome.different += std::equal(got, got + width, want) ? 0 : 1;
    }
  }
  return outcome;
}

ModelConfig model_named(const std::string& family) {
  ModelConfig model = family == "qwen3"    ? qwen3_model()
                      : family == "biased" ? biased_model()
                      : family == "gpt2"   ? gpt2_model()
                      : family == "olmo2"  ? olmo2_model()
                      : family == "mixed"  ? mixed_model()
                      : family == "munit"  ? munit_model()
                      : family == "fog"    ? fog_model()
                      : family == "tanh"   ? tanh_model()
                      : family == "lora"   ? lora_model()
                                           : small_model();
  model.max_position_embeddings = 128;
  if (family == "llama") {
    model.edit_layers([](LayerSpec& layer) { layer.attention.qkv_bias = false; });
  }
  return model;
}

}  // namespace

TEST_CASE("cached logits have the bits of the full pass") {
  const std::string family = GENERATE("llama", "qwen2", "qwen3", "biased", "gpt2", "olmo2", "mixed",
                                      "munit", "fog", "tanh", "lora");
  const std::string recipe =
      GENERATE("bf16", "fp32", "torchao_rowwise", "infir2", "deepseek_v3", "mxfp8", "te_delayed");
  INFO(family << " " << recipe);
  const Outcome outcome = compare("cpu", model_named(family), load_recipe(recipe));
  CHECK(outcome.different == 0);
  CHECK(outcome.total > 50);
}

TEST_CASE("a scale of the whole tensor sees which tokens come together") {
  const Outcome outcome = compare("cpu", model_named("llama"), load_recipe("e4m3_tensor"));
  CHECK(outcome.different > 0);
}
