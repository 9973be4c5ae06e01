// The names of layers in recipes: which models have them, and who is told so.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/architecture/layer_names.hpp"
#include "src/architecture/parts.hpp"
#include "src/config/config.hpp"
#include "src/config/key_help.hpp"
#include "src/config/recipe/model_recipe.hpp"
#include "src/config/tables/size_limits.hpp"
#include "src/io/files/atomic_file.hpp"
#include "tests/scratch_directory.hpp"

using namespace fp8lab;
using Catch::Contains;

namespace {

const std::string kLlama = "[model]\nvocab_size = 300\n";
const std::string kGpt2 =
    kLlama + "norm = \"layernorm\"\nfeed_forward = \"gelu_tanh\"\npositions = \"learned\"\n";
constexpr const char* kLlamaNames =
    "accepted: layers.N.attention.qkv, layers.N.attention.o, layers.N.mlp.gate_up, "
    "layers.N.mlp.down, lm_head, where N";
constexpr const char* kGpt2Names =
    "accepted: layers.N.attention.qkv, layers.N.attention.o, layers.N.mlp.up, layers.N.mlp.down, "
    "lm_head, where N";

/// A recipe file, by its path in quotes.
std::string recipe_file(const ScratchDirectory& scratch, const std::string& name,
                        const std::string& keys) {
  const auto path = scratch / (name + ".toml");
  write_file_atomically(path, "name = \"" + name + "\"\nbase = \"infir2\"\n" + keys);
  return "\"" + path.string() + "\"";
}

std::string override_of(const std::string& pattern) {
  return "[[override]]\nmatch = \"" + pattern + "\"\nslots.default.format = \"bf16\"\n";
}

std::string outcome(const std::string& head, const std::string& model, const std::string& stage) {
  try {
    parse_run_config(head + model + "[[stages]]\nname = \"one\"\nsteps = 20\n" + stage, "c.toml",
                     {});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a run accepts the layer names of its model in its recipes") {
  const ScratchDirectory scratch;
  const std::string up = recipe_file(scratch, "up", override_of("layers.*.mlp.up")),
                    gate_up = recipe_file(scratch, "gate_up", override_of("layers.*.mlp.gate_up")),
                    either =
                        recipe_file(scratch, "either", override_of("layers.0.mlp.{gate_up,up}"));
  const auto run = [](const std::string& recipe, const std::string& model) {
    return outcome("recipe = " + recipe + "\n", model, "");
  };
  CHECK(run(up, kGpt2) == "accepted");
  CHECK(run(gate_up, kLlama) == "accepted");
  CHECK(run(either, kGpt2) == "accepted");
  CHECK(run(either, kLlama) == "accepted");
  CHECK_THAT(run(up, kLlama), Contains("c.toml:1:1: 'recipe': recipe up") &&
                                  Contains("'layers.*.mlp.up'") && Contains(kLlamaNames));
  CHECK_THAT(run(gate_up, kGpt2), Contains("c.toml:1:1: 'recipe': recipe gate_up") &&
                                      Contains("'layers.*.mlp.gate_up'") && Contains(kGpt2Names));
}

TEST_CASE("a run accepts no layer beyond its last one") {
  const ScratchDirectory scratch;
  const std::string four = kLlama + "num_hidden_layers = 4\n";
  const auto run = [&](const std::string& keys) {
    return outcome("recipe = " + recipe_file(scratch, "deep", keys) + "\n", four, "");
  };
  for (const char* module : {"layers.3.mlp", "layers.last.mlp.down", "layers.{3,4}.mlp.down"}) {
    INFO(module);
    CHECK(run(override_of(module)) == "accepted");
  }
  for (const char* module : {"layers.4.mlp", "layers.900.mlp.down", "layers.4*.attention.o"}) {
    INFO(module);
    CHECK_THAT(run(override_of(module)), Contains(module) && Contains("N is at most 3"));
    const std::string kept = "[keep_high_precision]\nmodules = [\"" + std::string(module) + "\"]\n";
    CHECK_THAT(run(kept), Contains(module) && Contains("N is at most 3"));
  }
  CHECK_THAT(run("[keep_high_precision]\nmodules = [\"layers.4.mlp.norm\"]\n"),
             Contains("N is at most 3"));
}

TEST_CASE("so in every place of a run that names a recipe") {
  const ScratchDirectory scratch;
  const std::string up = recipe_file(scratch, "up", override_of("layers.*.mlp.up"));
  const std::string places[] = {
      "recipe = " + up + "\n", "recipe_at = [{step = 5, recipe = " + up + "}]\n",
      "fallback = {recipe = " + up + ", when = {nonfinite = true}}\n",
      "eval = {rollout = {recipe = " + up + "}, data = {form = \"prompt_response\"}}\n"};
  for (const std::string& place : places) {
    INFO(place);
    CHECK_THAT(outcome("", kLlama, place), Contains("c.toml:") && Contains(kLlamaNames));
    CHECK(outcome("", kGpt2, place) == "accepted");
  }
}

TEST_CASE("kept modules are those of the model") {
  // Published recipes keep "norm", which a model may lack.
  CHECK(outcome("recipe = \"te_delayed\"\n", kLlama + "final_norm = false\n", "") == "accepted");
  const ScratchDirectory scratch;
  const auto kept = [&](const std::string& name, const std::string& module) {
    return recipe_file(scratch, name,
                       "[keep_high_precision]\nmodules = [\"lm_head\", \"" + module + "\"]\n");
  };
  const std::string up = kept("a", "layers.last.mlp.up"), norm = kept("b", "layers.0.mlp.norm"),
                    positions = kept("c", "positions"), core = kept("d", "attention.core");
  const auto run = [](const std::string& recipe, const std::string& model) {
    return outcome("recipe = " + recipe + "\n", model, "");
  };
  CHECK(run(up, kGpt2) == "accepted");
  CHECK_THAT(run(up, kLlama), Contains("holds 'layers.last.mlp.up'") && Contains(kLlamaNames) &&
                                  Contains("also embed, layers.N.attention.norm"));
  CHECK(run(norm, kLlama) == "accepted");
  CHECK_THAT(run(norm, kLlama + "norm_place = \"post\"\n"),
             Contains("layers.N.mlp.post_norm, norm, attention.core"));
  CHECK(run(positions, kGpt2) == "accepted");
  CHECK_THAT(run(positions, kLlama), Contains("'positions'"));
  CHECK(run(core, kLlama) == "accepted");
}

TEST_CASE("a recipe without a model accepts the names of any, and nothing else") {
  const auto parses = [](const std::string& pattern) {
    try {
      parse_recipe("name = \"t\"\nbase = \"infir2\"\n" + override_of(pattern), "r.toml");
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  for (const char* pattern :
       {"lm_head", "layers.7.mlp.up", "layers.*.mlp.gate_up", "layers.{first,last}.attention",
        "layers.999", "*", "layers.3.mlp.{down,gate}", "layers.1*.attention.o"}) {
    INFO(pattern);
    CHECK(parses(pattern));
  }
  for (const char* pattern :
       {"embed", "norm", "mlp.down", "layers.0.mlp.gate", "layers.0.attention.norm",
        "layers.N.mlp.up", "layer.0", "layers.1000.mlp.up", "lm_head.weight"}) {
    INFO(pattern);
    CHECK_FALSE(parses(pattern));
  }
}

TEST_CASE("help names what recipes accept") {
  std::string accepted;
  for (const KeyHelp& key : recipe_keys()) {
    if (key.path == "override.match") accepted = key.accepted;
  }
  for (const std::string& name : layer_names_of_any_model().linears) {
    INFO(name);
    CHECK_THAT(accepted, Contains(name));
  }
  CHECK(layer_names_of_any_model().linears.size() == 6);
}

TEST_CASE("a model's refusal names the place of the caller") {
  const ScratchDirectory scratch;
  const std::string quoted = recipe_file(scratch, "up", override_of("layers.*.mlp.up"));
  const std::string file = quoted.substr(1, quoted.size() - 2);
  CHECK_THROWS_WITH(load_recipe_for(load_model("tiny"), file, "export"),
                    Contains("export: recipe up") && Contains(kLlamaNames));
  CHECK(load_recipe_for(load_model("gpt2"), file, "export").name == "up");
}

TEST_CASE("keys of layers go to all of them, and back") {
  const auto model_of = [](const std::string& keys) {
    return parse_run_config(kLlama + keys + "[[stages]]\nname = \"one\"\n", "c.toml", {}).model;
  };
  const ModelConfig olmo =
      model_of("norm_place = \"post\"\nqk_norm = true\nqk_norm_over = \"all_heads\"\n");
  for (const LayerSpec& layer : olmo.layers) {
    CHECK(layer.norm_place == NormPlace::post);
    CHECK(layer.attention.qk_norm == QkNorm::all_heads);
  }
  const ModelConfig munit = load_model("munit");
  for (const LayerSpec& layer : munit.layers) {
    CHECK(layer.residual.stream * layer.residual.stream == Approx(0.6));
    CHECK(layer.residual.branch * layer.residual.branch == Approx(0.4));
    CHECK(layer.norm_place == NormPlace::post);
  }
  const Declaration declared = declaration_of(munit);
  for (const LinearDeclaration& linear : declared.linears()) {
    const double in = static_cast<double>(linear.in);
    const double expected = linear.name == "lm_head" ? 1.0 / in : 1.0 / std::sqrt(in);
    INFO(linear.name);
    CHECK(linear.alpha == static_cast<float>(expected));
  }
  const ModelConfig fog = load_model("fog");
  CHECK(declaration_of(fog).weights() ==
        declaration_of(load_model("fog_llama")).weights() - 256 + 4 * (2 * 64 + 2));
  CHECK((!fog.has_final_norm && fog.layers.back().attention.qk_norm_frozen));
  CHECK(fog.layers.back().attention.softmax_scale == 0.125);
  CHECK(fog.layers.back().feed_forward.kind == FeedForwardKind::xielu);
  ModelConfig bounded = load_model("fog_tanh"), gelu = load_model("fog_gelu");
  CHECK(bounded.layers.back().attention.qk_norm == QkNorm::elements);
  CHECK(declaration_of(bounded).weights() == declaration_of(fog).weights() - 4 * 2 * (64 - 1));
  CHECK(gelu.layers.back().feed_forward.kind == FeedForwardKind::gelu_tanh);
  bounded.layers = gelu.layers = fog.layers;
  CHECK((bounded == fog && gelu == fog));
  const Declaration plain = declaration_of(load_model("tiny"));
  for (const LinearDeclaration& linear : plain.linears()) CHECK(linear.alpha == 1.0f);
  const ModelConfig windows = model_of(
      "num_hidden_layers = 3\nsliding_window = 7\nlayer_types = [\"sliding_attention\", "
      "\"full_attention\", \"sliding_attention\"]\n");
  REQUIRE(windows.layers.size() == 3);
  CHECK(windows.layers[0].attention.window == 7);
  CHECK(windows.layers[1].attention.window == 0);
  CHECK(windows.layers[2].attention.window == 7);
  const ModelConfig all = model_of("sliding_window = 7\nlayer_types = []\n");
  for (const LayerSpec& layer : all.layers) CHECK(layer.attention.window == 7);
  const auto refused = [](const std::string& keys) { return outcome("", kLlama + keys, ""); };
  CHECK_THAT(refused("qk_norm_over = \"head\"\n"), Contains("qk_norm = true"));
  CHECK_THAT(refused("norm_place = \"before\"\n"), Contains("pre, post, both, none"));
  for (const char* types : {"[\"full_attention\", \"full_attention\"]", "[\"sliding_attention\"]",
                            "[\"sliding_attention\", \"chunked_attention\"]", "3"}) {
    INFO(types);
    CHECK_THAT(refused("num_hidden_layers = 2\nsliding_window = 7\nlayer_types = " +
                       std::string(types) + "\n"),
               Contains("'model.layer_types'") && Contains("one for each of num_hidden_layers"));
  }
}

TEST_CASE("sizes are those that a model declares") {
  CHECK(parameter_count(load_model("llama3.2-1b")) == 1235814400.0);
  CHECK(parameter_count(load_model("gpt2")) == 124439808.0);
}

TEST_CASE("stress needs what it changes") {
  const std::string outliers = "stress = [{kind = \"outlier_channels\", gain = 8.0}]\n";
  CHECK(outcome("", kLlama, outliers) == "accepted");
  CHECK(outcome("", kLlama + "norm_place = \"both\"\n", outliers) == "accepted");
  for (const char* place : {"post", "none"}) {
    CHECK_THAT(outcome("", kLlama + "norm_place = \"" + place + "\"\n", outliers),
               Contains("stress.kind") && Contains("norm_place"));
  }
  CHECK_THAT(outcome("", kGpt2, "stress = [{kind = \"aligned_swiglu\", factor = 8.0}]\n"),
             Contains("which have a gate"));
  CHECK_THAT(outcome("", kLlama,
                     "stress = [{kind = \"aligned_swiglu\", factor = 8.0, layers = "
                     "\"layers.9.mlp.gate_up\"}]\n"),
             Contains("names no feed-forward"));
}
