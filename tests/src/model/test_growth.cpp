// Depth growth: each layer has the weights of the one that it copies, and silent copies change
// nothing.
#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/model/weights/growth.hpp"
#include "tests/src/model/model_fixture.hpp"

using namespace fp8lab;
using fp8lab::test::ModelAtWork;

namespace {

ModelConfig with_layers(ModelConfig model, std::int64_t layers) {
  model.set_layer_count(layers);
  return model;
}

/// `from` grown into `to`.
void grow(const ModelAtWork& from, GrowthConfig growth, ModelAtWork& to) {
  growth.from_layers = from.parameters.model().layer_count();
  const auto tensors = grown(tensors_of(from.parameters), growth, to.parameters.model());
  load_parameters(*tensors, "small", to.parameters);
}

std::vector<float> weights(const ModelAtWork& work, const std::string& name) {
  for (const Parameter& parameter : work.parameters.all()) {
    if (parameter.name() == name) return work.parameters.download(parameter);
  }
  FAIL("no parameter " + name);
  return {};
}

/// Of each layer of `to` the layer of `from` whose parameter `name` it has.
std::vector<int> copied(const ModelAtWork& from, const ModelAtWork& to, const std::string& name) {
  std::vector<int> layers;
  for (int i = 0; i < to.parameters.model().layer_count(); ++i) {
    const auto own = weights(to, "layers." + std::to_string(i) + "." + name);
    int found = -1;
    for (int j = 0; j < from.parameters.model().layer_count(); ++j) {
      if (weights(from, "layers." + std::to_string(j) + "." + name) == own) found = j;
    }
    layers.push_back(found);
  }
  return layers;
}

constexpr GrowthConfig kStacked{2, GrowthOrder::stack, false};
constexpr GrowthConfig kInterposed{2, GrowthOrder::interpose, false};

}  // namespace

TEST_CASE("growth: every layer has the weights of the layer that it copies") {
  const Recipe recipe = load_recipe("bf16");
  for (const ModelConfig& model :
       {test::small_model(), test::qwen3_model(), test::biased_model(), test::gpt2_model()}) {
    const ModelAtWork from("cpu", model, recipe);
    for (const auto& [growth, layers, expected] :
         {std::tuple(kInterposed, 4, std::vector<int>{0, 0, 1, 1}),
          std::tuple(kStacked, 4, std::vector<int>{0, 1, 0, 1}),
          std::tuple(kInterposed, 6, std::vector<int>{0, 0, 0, 1, 1, 1}),
          std::tuple(kStacked, 6, std::vector<int>{0, 1, 0, 1, 0, 1})}) {
      ModelAtWork to("cpu", with_layers(model, layers), recipe);
      grow(from, growth, to);
      for (const char* name : {"attention.qkv.weight", "attention.o.weight", "mlp.down.weight"}) {
        CHECK(copied(from, to, name) == expected);
      }
      CHECK(weights(to, "embed.weight") == weights(from, "embed.weight"));
      CHECK(weights(to, "norm.weight") == weights(from, "norm.weight"));
    }
  }
}

TEST_CASE("growth: silent copies leave the function to the bit, others do not") {
  for (const char* recipe : {"bf16", "infir2"}) {
    for (const ModelConfig& model :
         {test::small_model(), test::biased_model(), test::gpt2_model()}) {
      ModelAtWork from("cpu", model, load_recipe(recipe));
      for (const Parameter& parameter : from.parameters.all()) {
        if (!parameter.declaration.is_vector) continue;
        // Biases of zero, as they start, would hide copies that add them.
        auto values = from.parameters.download(parameter);
        for (float& value : values) value += 0.125f;
        from.parameters.upload(parameter, 0, values);
      }
      const double before = from.loss();
      for (GrowthConfig growth : {kInterposed, kStacked}) {
        ModelAtWork to("cpu", with_layers(model, 4), load_recipe(recipe));
        grow(from, growth, to);
        CHECK(to.loss() != before);
        growth.silent_copies = true;
        grow(from, growth, to);
        CHECK(to.loss() == before);
      }
    }
  }
}
