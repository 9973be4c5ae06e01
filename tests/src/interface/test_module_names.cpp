// Names of modules of transformers, as patterns of recipes match them.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "src/config/config.hpp"
#include "src/interface/module_names.hpp"

using namespace fp8lab;
using interface::match, interface::Module, interface::names_of, interface::recipes_of;

TEST_CASE("a module has its own name and that of its part in recipes") {
  const auto last_of = [](const std::string& name) { return names_of({name}).back(); };
  CHECK(names_of({"model.layers.3.self_attn.q_proj"}) ==
        std::vector<std::string>{"model.layers.3.self_attn.q_proj", "layers.3.self_attn.q_proj",
                                 "layers.3.attention.qkv"});
  CHECK(last_of("transformer.h.11.attn.c_proj") == "layers.11.attention.o");
  CHECK(last_of("transformer.h.11.mlp.c_proj") == "layers.11.mlp.down");
  CHECK(last_of("gpt_neox.layers.2.mlp.dense_h_to_4h") == "layers.2.mlp.up");
  CHECK(last_of("gpt_neox.layers.2.attention.dense") == "layers.2.attention.o");
  CHECK(last_of("encoder.block.1.layer.0.SelfAttention.o") == "layers.1.attention.o");
  CHECK(last_of("decoder.block.1.layer.2.DenseReluDense.wo") == "layers.1.mlp.down");
  CHECK(last_of("bert.encoder.layer.0.attention.output.dense") == "layers.0.attention.o");
  CHECK(last_of("bert.encoder.layer.0.intermediate.dense") == "layers.0.mlp.up");
  CHECK(last_of("bert.encoder.layer.0.output.dense") == "layers.0.mlp.down");
  CHECK(last_of("model.layers.1.mlp.experts.3.gate_proj") == "layers.1.mlp.gate_up");
  CHECK(last_of("model.layers.1.mixer.in_proj") == "layers.1.mixer.in_proj");
  CHECK(names_of({"classifier"}) == std::vector<std::string>{"classifier"});
  CHECK(names_of({"0"}) == std::vector<std::string>{"0"});
  CHECK(names_of({"embed_out", true}) == std::vector<std::string>{"embed_out", "lm_head"});
}

TEST_CASE("first and last are those of a module's own stack") {
  const std::vector<Module> modules = {{"encoder.layers.0.fc1"}, {"encoder.layers.1.fc1"},
                                       {"decoder.layers.0.fc1"}, {"decoder.layers.1.fc1"},
                                       {"decoder.layers.2.fc1"}, {"proj_out", true}};
  const auto found = match({"layers.last", "decoder.layers.0", "lm_head"}, modules);
  using Found = std::vector<std::optional<std::size_t>>;
  CHECK(found == Found{std::nullopt, 0, 1, std::nullopt, 0, 2});
}

TEST_CASE("a recipe's exceptions hold for modules") {
  const Recipe recipe = parse_recipe(
      "name = \"parts\"\n[slots.default]\nformat = \"e4m3fn\"\n[keep_high_precision]\n"
      "modules = [\"lm_head\", \"layers.last\"]\n[[override]]\nmatch = \"layers.*.mlp.down\"\n"
      "[override.slots.x]\nformat = \"e5m2\"\n",
      "parts.toml");
  const auto recipes = recipes_of(recipe, {{"model.layers.0.mlp.up_proj"},
                                           {"model.layers.0.mlp.down_proj"},
                                           {"model.layers.1.mlp.down_proj"},
                                           {"lm_head"}});
  CHECK(recipes == std::vector<const LinearRecipe*>{&recipe.linear, &recipe.overrides[0].recipe,
                                                    nullptr, nullptr});
}
