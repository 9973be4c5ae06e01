// Every parameter's gradient: double precision against central differences, and the emulated path
// against the double path.
#include <catch2/catch.hpp>
#include <cmath>

#include "src/config/config.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using fp8lab::test::ModelAtWork;

namespace {

/// Loss with one weight moved by `delta` on the truth backend, where master weights are f64.
double moved_loss(ModelAtWork& work, const Parameter& parameter, std::size_t index, double delta) {
  std::vector<double> values = work.read(parameter.master());
  const double original = values[index];
  values[index] = original + delta;
  work.backend->upload(parameter.master(), values.data());
  const double loss = work.loss();
  values[index] = original;
  work.backend->upload(parameter.master(), values.data());
  return loss;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / norm(b);
}

void check_against_differences(const ModelConfig& model) {
  ModelAtWork work("truth", model, load_recipe("bf16"));
  work.loss_and_gradients();
  for (const Parameter& parameter : work.parameters.all()) {
    if (!parameter.is_trained()) continue;
    const std::vector<double> gradient = work.gradient(parameter);
    const double scale = norm(gradient) / std::sqrt(static_cast<double>(gradient.size()));
    INFO(parameter.name());
    REQUIRE(scale > 0);
    // The largest entry, and entries spread over the tensor.
    std::size_t largest = 0;
    for (std::size_t i = 1; i < gradient.size(); ++i) {
      if (std::abs(gradient[i]) > std::abs(gradient[largest])) largest = i;
    }
    for (const std::size_t index :
         {largest, std::size_t{0}, gradient.size() / 3, gradient.size() - 1}) {
      // Error of a central difference: h^2 f'''/6 + 2^-53 |loss| / h, smallest near h = 1e-5.
      const double h = 1e-5;
      const double difference =
          (moved_loss(work, parameter, index, h) - moved_loss(work, parameter, index, -h)) /
          (2 * h);
      INFO("index " << index << " gradient " << gradient[index] << " difference " << difference);
      CHECK(std::abs(difference - gradient[index]) <=
            1e-6 * std::abs(gradient[index]) + 1e-4 * scale + 1e-9);
    }
  }
}

}  // namespace

TEST_CASE("double-precision gradients equal central differences, tied embeddings") {
  check_against_differences(fp8lab::test::small_model());
}

TEST_CASE("double-precision gradients equal central differences, untied, no bias, no grouping") {
  ModelConfig model = fp8lab::test::small_model();
  model.tie_word_embeddings = false;
  model.edit_layers([](LayerSpec& layer) { layer.attention.qkv_bias = false; });
  model.num_key_value_heads = model.num_attention_heads;
  check_against_differences(model);
}

TEST_CASE("double-precision gradients equal central differences, norms of q and k, llama3 RoPE") {
  check_against_differences(fp8lab::test::qwen3_model());
}

TEST_CASE("double-precision gradients equal central differences, every bias, yarn RoPE") {
  check_against_differences(fp8lab::test::biased_model());
}

TEST_CASE("double-precision gradients equal central differences, GPT-2") {
  check_against_differences(fp8lab::test::gpt2_model());
}

TEST_CASE("double-precision gradients equal central differences, norms behind the blocks") {
  check_against_differences(fp8lab::test::olmo2_model());
}

TEST_CASE("double-precision gradients equal central differences, norms on both sides") {
  check_against_differences(fp8lab::test::with_norms(fp8lab::test::gpt2_model(), NormPlace::both));
}

TEST_CASE("double-precision gradients equal central differences, factors and squared ReLU") {
  const NormPlace place = GENERATE(NormPlace::post, NormPlace::pre);
  check_against_differences(fp8lab::test::with_norms(fp8lab::test::munit_model(), place));
}

TEST_CASE("double-precision gradients equal central differences, no last norm and GEGLU") {
  check_against_differences(fp8lab::test::fog_model());
}

TEST_CASE("double-precision gradients equal central differences, tanh of queries and keys") {
  check_against_differences(fp8lab::test::tanh_model());
}

TEST_CASE("double-precision gradients equal central differences, low-rank adapters") {
  check_against_differences(fp8lab::test::lora_model());
}

TEST_CASE("double-precision gradients equal central differences, layers that differ") {
  check_against_differences(fp8lab::test::mixed_model());
}

// Bound of the emulated path against the double path. Both start from the same weights (rounded to
// BF16 by the emulator: relative error u = 2^-9 each). On its way to a weight gradient a value
// passes, per layer, at most 12 roundings to BF16 in the forward and 14 in the backward pass, each
// a relative perturbation of at most u of the tensor; perturbations of different tensors are
// independent in sign, so their norms add in squares: sqrt(26 L + 8) u for L layers and the head,
// times the condition of the nonlinear parts (softmax and norms), which is below 4 for this
// model.
TEST_CASE("emulated BF16 gradients are as close to the truth as BF16 allows") {
  const ModelConfig model = GENERATE(
      fp8lab::test::small_model(), fp8lab::test::qwen3_model(), fp8lab::test::biased_model(),
      fp8lab::test::gpt2_model(), fp8lab::test::olmo2_model(), fp8lab::test::munit_model(),
      fp8lab::test::fog_model(), fp8lab::test::tanh_model(), fp8lab::test::lora_model());
  ModelAtWork truth("truth", model, load_recipe("bf16"));
  ModelAtWork emulated("cpu", model, load_recipe("bf16"));
  const double true_loss = truth.loss_and_gradients();
  const double emulated_loss = emulated.loss_and_gradients();
  const double unit = std::ldexp(1.0, -9);
  const double bound =
      4.0 * unit * std::sqrt(26.0 * static_cast<double>(model.layer_count()) + 8.0);
  CHECK(std::abs(emulated_loss - true_loss) <= bound * true_loss);
  for (std::size_t i = 0; i < truth.parameters.all().size(); ++i) {
    const Parameter& parameter = truth.parameters.all()[i];
    // The gradient of a single number is one sum over all tokens, which may cancel: the bound is of
    // its terms. The test in FP32 has them.
    if (!parameter.is_trained() || parameter.declaration.size() == 1) continue;
    const auto expected = truth.gradient(truth.parameters.all()[i]);
    const auto measured = emulated.gradient(emulated.parameters.all()[i]);
    INFO(truth.parameters.all()[i].name());
    CHECK(relative_difference(measured, expected) <= bound);
  }
}

// With FP32 storage the unit roundoff is 2^-24; sums of up to 272 terms add their own roundings,
// which the fixed order bounds by their length.
TEST_CASE("emulated FP32 gradients are as close to the truth as FP32 allows") {
  const ModelConfig model = GENERATE(fp8lab::test::small_model(), fp8lab::test::qwen3_model(),
                                     fp8lab::test::biased_model(), fp8lab::test::gpt2_model(),
                                     fp8lab::test::olmo2_model(), fp8lab::test::munit_model(),
                                     fp8lab::test::fog_model(), fp8lab::test::tanh_model());
  ModelAtWork truth("truth", model, load_recipe("bf16"));
  ModelAtWork emulated("cpu", model, load_recipe("fp32"));
  truth.loss_and_gradients();
  emulated.loss_and_gradients();
  const double bound = std::ldexp(1.0, -24) * 272.0 * 4.0;
  for (std::size_t i = 0; i < truth.parameters.all().size(); ++i) {
    INFO(truth.parameters.all()[i].name());
    CHECK(relative_difference(emulated.gradient(emulated.parameters.all()[i]),
                              truth.gradient(truth.parameters.all()[i])) <= bound);
  }
}

TEST_CASE("a masked prompt token has no gradient and another document cannot be seen") {
  const ModelConfig model = fp8lab::test::small_model();
  ModelAtWork work("cpu", model, load_recipe("bf16"));
  const auto token_losses = [&] {
    work.loss();
    return work.read(work.transformer->token_losses());
  };
  const std::vector<double> before = token_losses();
  Batch changed = work.batch;
  // The second document of the first sequence begins where document_start first changes.
  std::size_t second = 0;
  while (changed[kDocumentStarts][second] == 0) ++second;
  REQUIRE(second < static_cast<std::size_t>(changed.sequence_length));
  for (std::size_t i = 0; i < second; ++i) changed[kTokens][i] = (changed[kTokens][i] + 17) % 256;
  work.load(changed);
  const std::vector<double> after = token_losses();
  bool first_document_changed = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (work.batch[kTargetWeights][i] == 0.0f) CHECK(before[i] == 0.0);
    if (i < second) {
      first_document_changed = first_document_changed || before[i] != after[i];
    } else {
      CHECK(before[i] == after[i]);
    }
  }
  CHECK(first_document_changed);
}
