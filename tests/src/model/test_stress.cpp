// Stresses: what they change, what they leave as it was, and that steps do not depend on each
// other.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "src/model/stress.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using fp8lab::test::ModelAtWork;

namespace {

constexpr std::uint64_t kSeed = 11;

StageConfig stage_with(const StressConfig& stress) {
  StageConfig stage;
  stage.stress = {stress};
  return stage;
}

StressConfig outliers(std::int64_t channels, double gain, std::int64_t over_steps = 0) {
  StressConfig stress;
  stress.channels = channels;
  stress.gain = gain;
  stress.over_steps = over_steps;
  return stress;
}

StressConfig spike(double factor) {
  StressConfig stress;
  stress.kind = StressKind::spike;
  stress.factor = factor;
  return stress;
}

StressConfig aligned(std::int64_t channels, double factor, const std::string& layers) {
  StressConfig stress;
  stress.kind = StressKind::aligned_swiglu;
  stress.channels = channels;
  stress.factor = factor;
  stress.layers = layers;
  return stress;
}

/// Steps `first` to `last` of the stage, without an update.
std::vector<std::string> stressed(ModelAtWork& work, const StressConfig& stress,
                                  std::int64_t first = 0, std::int64_t last = 0) {
  std::vector<std::string> events;
  for (std::int64_t step = first; step <= last; ++step) {
    StressedStep at_work(*work.backend, work.parameters, stage_with(stress), step, kSeed);
    at_work.end();
    events.insert(events.end(), at_work.events().begin(), at_work.events().end());
  }
  return events;
}

std::vector<std::vector<double>> gradients(ModelAtWork& work) {
  std::vector<std::vector<double>> all;
  for (const Parameter& parameter : work.parameters.all()) all.push_back(work.gradient(parameter));
  return all;
}

std::vector<std::vector<float>> weights(const ModelAtWork& work) {
  std::vector<std::vector<float>> all;
  for (const Parameter& parameter : work.parameters.all()) {
    all.push_back(work.parameters.download(parameter));
  }
  return all;
}

const Parameter& named(const ModelAtWork& work, const std::string& name) {
  for (const Parameter& parameter : work.parameters.all()) {
    if (parameter.name() == name) return parameter;
  }
  throw Error("no parameter " + name);
}

ModelAtWork at_work(const std::string& backend, const ModelConfig& model,
                    const std::string& recipe = "bf16") {
  return {backend, model, load_recipe(recipe)};
}

/// Biases begin at zero, which no factor changes.
void fill_biases(ModelAtWork& work) {
  for (const Parameter& parameter : work.parameters.all()) {
    if (!parameter.name().ends_with(".bias")) continue;
    std::vector<float> bias(static_cast<std::size_t>(parameter.master().size()));
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = 0.01f * static_cast<float>(i % 7 + 1);
    work.parameters.upload(parameter, bias);
  }
}

}  // namespace

TEST_CASE(
    "outlier channels are multiplied behind norms and divided in the weights that read them") {
  ModelAtWork work = at_work("cpu", test::small_model()),
              plain = at_work("cpu", work.parameters.model());
  CHECK(stressed(work, outliers(3, 64)) ==
        std::vector<std::string>{"outlier_channels: 3 channels, gain 64"});
  std::set<std::vector<std::size_t>> channels_of_norms;
  for (const std::string block : {"layers.0.attention.norm", "layers.0.mlp.norm",
                                  "layers.1.attention.norm", "layers.1.mlp.norm"}) {
    const std::string reader = block.find("mlp") == std::string::npos
                                   ? block.substr(0, 9) + "attention.qkv.weight"
                                   : block.substr(0, 9) + "mlp.gate_up.weight";
    INFO(block << " " << reader);
    const auto norm = work.parameters.download(named(work, block + ".weight"));
    const Parameter& weight = named(work, reader);
    const auto after = work.parameters.download(weight);
    const auto before = plain.parameters.download(named(plain, reader));
    std::vector<std::size_t> channels;
    for (std::size_t i = 0; i < norm.size(); ++i) {
      if (norm[i] != 1.0f) channels.push_back(i);
      const float gain = norm[i];
      CHECK((gain == 1.0f || gain == 64.0f));
      for (std::size_t row = 0; row < static_cast<std::size_t>(weight.master().rows); ++row) {
        REQUIRE(after[row * norm.size() + i] * gain == before[row * norm.size() + i]);
      }
    }
    CHECK(channels.size() == 3);
    channels_of_norms.insert(channels);
  }
  CHECK(channels_of_norms.size() == 1);
}

TEST_CASE("outlier channels leave the function as it is, to the bit") {
  const ModelConfig model =
      GENERATE(test::small_model(), test::qwen3_model(), test::biased_model(), test::gpt2_model());
  ModelAtWork work = at_work("cpu", model), plain = at_work("cpu", model);
  fill_biases(work);
  fill_biases(plain);
  REQUIRE_FALSE(stressed(work, outliers(2, 4096)).empty());
  CHECK((weights(work) != weights(plain)));
  CHECK(work.loss() == plain.loss());
}

TEST_CASE("a gain that grows is a power of two in every step and arrives") {
  const StressConfig stress = outliers(1, 0x1p14, 5);
  const std::vector<double> expected = {1, 4, 32, 256, 2048, 16384};
  for (std::size_t done = 0; done < expected.size(); ++done) {
    CHECK(gain_after(stress, static_cast<std::int64_t>(done)) == expected[done]);
  }
  CHECK(gain_after(outliers(1, 0x1p-3, 2), 1) == 0.5);
  CHECK(gain_after(outliers(1, 64), 1) == 64);
  ModelAtWork slowly = at_work("cpu", test::small_model());
  ModelAtWork at_once = at_work("cpu", test::small_model());
  CHECK(stressed(slowly, outliers(2, 8, 6), 0, 9) ==
        std::vector<std::string>{"outlier_channels: 2 channels, gain 2",
                                 "outlier_channels: 2 channels, gain 4",
                                 "outlier_channels: 2 channels, gain 8"});
  stressed(at_once, outliers(2, 8));
  CHECK((weights(slowly) == weights(at_once)));
}

TEST_CASE("weights that changed for good are told, for their storage to round them") {
  ModelAtWork work = at_work("cpu", test::small_model());
  const auto plants = [&](const StressConfig& stress, std::int64_t step) {
    return StressedStep(*work.backend, work.parameters, stage_with(stress), step, kSeed)
        .has_planted();
  };
  CHECK(plants(outliers(3, 64), 0));
  CHECK_FALSE(plants(outliers(3, 64), 1));
  CHECK(plants(aligned(2, 8, "layers.*"), 0));
  CHECK_FALSE(plants(aligned(2, 8, "layers.9"), 0));
}

TEST_CASE("an aligned SwiGLU has a gate that is a multiple of its other half") {
  ModelConfig model = test::small_model();
  model.edit_layers([](LayerSpec& layer) { layer.feed_forward.bias = true; });
  ModelAtWork work = at_work("cpu", model), plain = at_work("cpu", model);
  for (ModelAtWork* each : {&work, &plain}) {
    std::vector<float> bias(static_cast<std::size_t>(2 * model.intermediate_size));
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i + 1);
    each->parameters.upload(named(*each, "layers.1.mlp.gate_up.bias"), bias);
  }
  CHECK(stressed(work, aligned(5, 16, "layers.last")) ==
        std::vector<std::string>{"aligned_swiglu: 5 channels of 1 layers, factor 16"});
  const auto f = static_cast<std::size_t>(model.intermediate_size);
  const auto h = static_cast<std::size_t>(model.hidden_size);
  const auto check = [&](const std::string& name, std::size_t width) {
    const auto after = work.parameters.download(named(work, name));
    const auto before = plain.parameters.download(named(plain, name));
    std::set<std::size_t> channels;
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (after[i] == before[i]) continue;
      REQUIRE(i < f * width);
      REQUIRE(after[i] == 16 * before[i + f * width]);
      channels.insert(i / width);
    }
    CHECK(channels.size() == 5);
    return channels;
  };
  CHECK(check("layers.1.mlp.gate_up.weight", h) == check("layers.1.mlp.gate_up.bias", 1));
  const auto untouched = work.parameters.download(named(work, "layers.0.mlp.gate_up.weight"));
  CHECK((untouched == plain.parameters.download(named(plain, "layers.0.mlp.gate_up.weight"))));
  CHECK(work.loss() != plain.loss());
}

TEST_CASE("without quantization a spike changes no bit of loss, gradients and weights") {
  const ModelConfig model =
      GENERATE(test::small_model(), test::qwen3_model(), test::biased_model(), test::gpt2_model());
  const char* backend = GENERATE("cpu", "truth");
  const char* recipe = GENERATE("bf16", "fp32");
  INFO(backend << " " << recipe);
  ModelAtWork work = at_work(backend, model, recipe), plain = at_work(backend, model, recipe);
  fill_biases(work);
  fill_biases(plain);
  StressedStep spiked(*work.backend, work.parameters, stage_with(spike(64)), 0, kSeed);
  CHECK(spiked.events() == std::vector<std::string>{"spike: factor 64"});
  CHECK(work.read(named(work, "layers.0.mlp.norm.weight").master()).front() == 64);
  CHECK(work.loss_and_gradients() == plain.loss_and_gradients());
  CHECK((gradients(work) != gradients(plain)));
  spiked.end();
  CHECK((gradients(work) == gradients(plain)));
  CHECK((weights(work) == weights(plain)));
  CHECK(work.parameters.hash() == plain.parameters.hash());
  CHECK_FALSE(spiked.has_planted());
  // Once more, for gradients that are taken again.
  spiked.begin_again();
  CHECK(work.read(named(work, "layers.0.mlp.norm.weight").master()).front() == 64);
  CHECK(work.loss_and_gradients() == plain.loss_and_gradients());
  spiked.end();
  CHECK((gradients(work) == gradients(plain)));
  CHECK(work.parameters.hash() == plain.parameters.hash());
  // The working copies: scaled ones would give the same loss.
  CHECK(work.loss_and_gradients() == plain.loss_and_gradients());
  CHECK((gradients(work) == gradients(plain)));
}

TEST_CASE("scales of the tensor itself follow a spike, fixed ones do not") {
  const auto differs = [](const std::string& recipe) {
    ModelAtWork work = at_work("cpu", test::small_model(), recipe);
    ModelAtWork plain = at_work("cpu", test::small_model(), recipe);
    StressedStep spiked(*work.backend, work.parameters, stage_with(spike(1024)), 0, kSeed);
    const bool loss = work.loss_and_gradients() != plain.loss_and_gradients();
    spiked.end();
    return loss || gradients(work) != gradients(plain);
  };
  CHECK_FALSE(differs("te_current"));
  CHECK_FALSE(differs("infir2"));
  CHECK(differs("te_delayed"));  // without a history its scale is 1
}

TEST_CASE("spikes of one step multiply, and a step without a stress changes nothing") {
  ModelAtWork work = at_work("cpu", test::small_model());
  StageConfig stage = stage_with(spike(4));
  stage.stress.push_back(spike(8));
  stage.stress.front().at_step = stage.stress.back().at_step = 2;
  const std::uint64_t hash = work.parameters.hash();
  for (const std::int64_t step : {0, 1, 2, 3}) {
    StressedStep spiked(*work.backend, work.parameters, stage, step, kSeed);
    CHECK(spiked.events() ==
          (step == 2 ? std::vector<std::string>{"spike: factor 32"} : std::vector<std::string>{}));
    CHECK((work.parameters.hash() != hash) == (step == 2));
    spiked.end();
    CHECK(work.parameters.hash() == hash);
  }
}
