// The [optimizer] table: rules, storage of states in words, groups, and the systems that come with
// the program.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/recipe/spec_words.hpp"

namespace fp8lab {
namespace {

const std::string kStage = "[[stages]]\nname = \"s\"\nsteps = 30\n";

RunConfig with(const std::string& optimizer, const std::vector<Assignment>& assignments = {}) {
  return parse_run_config(optimizer + kStage, "c.toml", assignments);
}

std::string refusal(const std::string& optimizer) {
  try {
    with(optimizer);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

/// The lines of the [optimizer] tables that are not at their default.
std::string said(const RunConfig& config) {
  const std::string text = canonical_text(config);
  const std::size_t begin = text.find("[optimizer]"), end = text.find("\n[[stages]]", begin);
  return begin == std::string::npos ? "" : text.substr(begin, end - begin);
}

TEST_CASE("the words of a state are inverse to its label") {
  for (const char* words :
       {"bf16", "fp32", "fp16", "fp16/tensor/fp32", "fp16/tensor/pow2/enc_floor",
        "e5m6/1x128/bf16/dec_div", "e4m3fn/tensor/pow2/enc_floor", "e4m3fn/1x128/expand",
        "e5m2/tensor/fp32/stochastic", "lns16g2048/tensor/pow2/ceil", "lns8/tensor/e8m0/rceil",
        "fp16/static:0.5", "int8/1x64/fp32", "e4m3fn/tensor/fp32/margin:2"}) {
    INFO(words);
    const QuantSpec spec = parse_state_spec(words);
    CHECK(state_label(spec) == words);
    CHECK(parse_state_spec(state_label(spec)) == spec);
    CHECK_FALSE(refuse_state(spec));
  }
  CHECK(state_label(parse_state_spec("fp16/tensor/pow2")) == "fp16/tensor/pow2/enc_floor");
  // An operand has no such scale.
  CHECK_THROWS_WITH(parse_quant_spec("fp16/tensor"), Catch::Contains("more than 8 bits"));
}

TEST_CASE("states that cannot be stored are refused") {
  for (const char* words : {"e8m10", "logfmt8/1x64", "e4m3fn/delayed", "e2m1/nv16", "e4m3fn/row",
                            "e4m3fn/128x128", "e4m3fn/tensor/hadamard:16", "e8m0", "fp8",
                            "e5m2/1x128/expand", "fp16/1x128/expand", "bf16/tensor"}) {
    const std::string message =
        refusal("[optimizer]\nfirst_moment = \"" + std::string(words) + "\"\n");
    INFO(words << ": " << message);
    CHECK_THAT(message, Catch::Contains("c.toml:2:") && Catch::Contains("first_moment") &&
                            Catch::Contains("e4m3fn/1x128/expand"));
  }
}

TEST_CASE("optimizers survive their text and have hashes of their own") {
  const std::vector<std::string> tables = {
      "",
      "[optimizer]\nkind = \"lion\"\nfirst_moment = \"e4m3fn/1x128\"\n",
      "[optimizer]\nkind = \"sgd\"\nupdate_moments = \"unrounded\"\n",
      "[optimizer]\nkind = \"sgd\"\n",
      "[optimizer]\nkind = \"madam\"\nweights = \"lns16g2048/tensor/pow2\"\n",
      "[optimizer]\nkind = \"madam\"\nweight_bound = 2.5\ngradient_bound = 7.0\n",
      "[optimizer]\ngradients = \"e4m3fn/tensor/pow2\"\n",
      "[optimizer]\nweights = \"fp16/tensor/pow2/stochastic\"\n",
      "[optimizer]\n[[optimizer.group]]\nmatch = \"embedding\"\nlearning_rate = 0.5\n"
      "[[optimizer.group]]\nmatch = \"layers.*.mlp\"\nweight_decay = 0.0\n",
      "[optimizer]\n[[optimizer.group]]\nmatch = \"embedding\"\nweight_decay = 0.1\n",
      "[optimizer]\n[[optimizer.group]]\nmatch = \"embedding\"\nfrozen = true\n",
      "[optimizer]\nkind = \"muon\"\n",
      "[optimizer]\nkind = \"muon\"\nmomentum = 0.9\n",
      "[optimizer]\nkind = \"muon\"\nupdate_scale = \"original\"\nsecond_moment = \"bf16\"\n",
      "[optimizer]\nkind = \"muon\"\n[[optimizer.group]]\nmatch = \"embedding\"\nkind = "
      "\"muon\"\n",
      "[optimizer]\nkind = \"muon\"\n[[optimizer.group]]\nmatch = \"layers.*.mlp\"\nkind = "
      "\"adamw\"\n"};
  std::vector<std::string> hashes;
  for (const std::string& table : tables) {
    INFO(table);
    const RunConfig config = with(table);
    for (const std::string& text : {to_toml(config), canonical_text(config)}) {
      const RunConfig again = parse_run_config(text, "again", {});
      CHECK(again.text == config.text);
      CHECK(again.hash == config.hash);
      CHECK(again.optimizer.update == config.optimizer.update);
      CHECK(again.optimizer.groups == config.optimizer.groups);
      CHECK(again.optimizer.weights == config.optimizer.weights);
    }
    for (const std::string& other : hashes) CHECK(other != config.hash);
    hashes.push_back(config.hash);
  }
  const RunConfig grouped = with(tables[8]);
  REQUIRE(grouped.optimizer.groups.size() == 2);
  CHECK(grouped.optimizer.groups[0].weight_decay < 0.0f);
  CHECK(grouped.optimizer.groups[1].weight_decay == 0.0f);
  CHECK(grouped.optimizer.groups[0].learning_rate == 0.5f);
}

TEST_CASE("keys of another rule: numbers stay silent, storage is refused") {
  const std::string numbers = "beta1 = 0.8\nbeta2 = 0.9\nepsilon = 1e-6\nweight_decay = 0.3\n";
  CHECK(with("[optimizer]\nkind = \"sgd\"\nbeta1 = 0.8\nweight_decay = 0.3\n").hash ==
        with("[optimizer]\nkind = \"sgd\"\n" + numbers).hash);
  CHECK(with("[optimizer]\n" + numbers, {{"optimizer.kind", "madam"}}).optimizer.update.beta2 ==
        0.9f);
  CHECK_THAT(refusal("[optimizer]\nkind = \"lion\"\nsecond_moment = \"bf16\"\n"),
             Catch::Contains("second_moment") && Catch::Contains("madam"));
  CHECK_THAT(refusal("[optimizer]\nkind = \"madam\"\nfirst_moment = \"bf16\"\n"),
             Catch::Contains("first_moment"));
  CHECK_THAT(refusal("[optimizer]\nkind = \"lion\"\nupdate_moments = \"unrounded\"\n"),
             Catch::Contains("update_moments"));
  CHECK_THAT(refusal("[optimizer]\ngradient_bound = 7.0\n"), Catch::Contains("madam"));
  CHECK_THAT(refusal("[optimizer]\nkind = \"adam\"\n"),
             Catch::Contains("adamw, lion, sgd, madam, muon"));
  CHECK_THAT(refusal("[optimizer]\nupdate_scale = \"original\"\n"), Catch::Contains("muon"));
  CHECK(with("[optimizer]\nmomentum = 0.9\n").hash == with("").hash);
  CHECK_THAT(refusal("[optimizer]\n[[optimizer.group]]\nmatch = \"layers\"\nkind = \"muon\"\n"),
             Catch::Contains("c.toml:2") && Catch::Contains("the group \"layers\"") &&
                 Catch::Contains("kind = \"muon\""));
  CHECK_THAT(refusal("[optimizer]\nkind = \"muon\"\n[[optimizer.group]]\nmatch = \"layers\"\n"
                     "kind = \"lion\"\n"),
             Catch::Contains("automatic, adamw, muon"));
  CHECK_THAT(refusal("[optimizer]\n[[optimizer.group]]\nlearning_rate = 2.0\n"),
             Catch::Contains("match"));
  CHECK_THAT(refusal("[optimizer]\n[[optimizer.group]]\nmatch = \"layers\"\n"),
             Catch::Contains("the group changes nothing") && Catch::Contains("frozen = true"));
  CHECK_THAT(refusal("[optimizer]\n[[optimizer.group]]\nmatch = \"layers\"\nfrozen = true\n"
                     "learning_rate = 0.5\n"),
             Catch::Contains("learning_rate") && Catch::Contains("frozen = false"));
  CHECK(with("[optimizer]\n[[optimizer.group]]\nmatch = \"layers\"\nlearning_rate = 0.5\n"
             "frozen = false\n")
            .hash ==
        with("[optimizer]\n[[optimizer.group]]\nmatch = \"layers\"\nlearning_rate = 0.5\n").hash);
  const RunConfig kept =
      with("[optimizer]\n[[optimizer.group]]\nmatch = \"layers\"\nlearning_rate = 1.0\n");
  REQUIRE(kept.optimizer.groups.size() == 1);
  CHECK(parse_run_config(to_toml(kept), "again", {}).optimizer.groups == kept.optimizer.groups);
}

TEST_CASE("the optimizers of published systems") {
  const auto resolved = [](const std::string& name) {
    const RunConfig config = with("optimizer = \"" + name + "\"\n");
    CHECK(with("[optimizer]\nbase = \"" + name + "\"\n").hash == config.hash);
    CHECK(with("", {{"optimizer", name}}).hash == config.hash);
    return said(config);
  };
  CHECK(resolved("fp8_lm_o2") ==
        "[optimizer]\n"
        "weights = \"fp16/tensor/pow2/enc_floor\"\n"
        "first_moment = \"e4m3fn/tensor/pow2/enc_floor\"\n"
        "second_moment = \"fp16/tensor/pow2/enc_floor\"\n"
        "update_moments = \"unrounded\"\n");
  CHECK(resolved("fp8_adam") ==
        "[optimizer]\n"
        "weights = \"fp16/tensor/pow2/enc_floor\"\n"
        "first_moment = \"e4m3fn/tensor/pow2/enc_floor\"\n"
        "second_moment = \"e5m2/tensor/pow2/enc_floor\"\n"
        "update_moments = \"unrounded\"\n");
  CHECK(resolved("coat") ==
        "[optimizer]\n"
        "first_moment = \"e4m3fn/1x128/expand\"\n"
        "second_moment = \"e4m3fn/1x128/expand\"\n"
        "update_moments = \"unrounded\"\n");
  CHECK(resolved("lns_madam") ==
        "[optimizer]\n"
        "beta2 = 0.999\n"
        "clip_norm = 0.0\n"
        "weights = \"lns16g2048/tensor/pow2/enc_floor\"\n"
        "kind = \"madam\"\n");
  CHECK(resolved("deepseek_v3") ==
        "[optimizer]\n"
        "first_moment = \"bf16\"\n"
        "second_moment = \"bf16\"\n");
  CHECK(resolved("muon") == "[optimizer]\nkind = \"muon\"\n");
  CHECK(experiment_names("optimizers").size() == 7);
  CHECK_THAT(refusal("optimizer = \"coatt\"\n"),
             Catch::Contains("coatt") && Catch::Contains("fp8_adam"));
}

}  // namespace
}  // namespace fp8lab
