// The tables of run files and recipes: what follows from a row.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/config/config.hpp"
#include "src/config/key_help.hpp"
#include "src/config/reading/experiments.hpp"
#include "src/config/tables/table.hpp"
#include "src/config/value_help.hpp"

namespace fp8lab {
namespace {

const std::string kRun =
    "[[stages]]\nname = \"one\"\n[[stages]]\nbase = \"sft\"\nname = \"two\"\nsteps = 30\n";

RunConfig with(const std::vector<Assignment>& assignments) {
  return parse_run_config(kRun, "c.toml", assignments);
}

TEST_CASE("every key says what it is for, what it may be and what it is when absent") {
  for (const std::vector<KeyHelp>& keys : {run_keys(), recipe_keys()}) {
    std::vector<std::string> paths;
    for (const KeyHelp& key : keys) {
      INFO(key.path << ": " << key.help);
      CHECK(key.help.size() >= 5);
      CHECK(key.help.find('\n') == std::string::npos);
      CHECK(key.help.back() != '.');
      if (key.is_table) continue;
      CHECK_FALSE(key.accepted.empty());
      paths.push_back(key.path);
    }
    std::sort(paths.begin(), paths.end());
    CHECK(std::adjacent_find(paths.begin(), paths.end()) == paths.end());
  }
  CHECK(run_key_page().find("\n  decay_steps\n") != std::string::npos);
  CHECK(recipe_key_page().find("\n  four_over_six\n") != std::string::npos);
}

TEST_CASE("the keys that are listed are those that --set takes") {
  int keys = 0;
  for (const KeyHelp& key : run_keys()) {
    // Keys of tables in a list are not addressed singly.
    const bool is_in_list = key.path.find("sources") != std::string::npos ||
                            key.path.find("stress") != std::string::npos ||
                            key.path.find("recipe_at") != std::string::npos ||
                            key.path.starts_with("optimizer.group.");
    if (key.is_table || is_in_list) continue;
    const std::string stages = "stages.";
    const std::string path =
        key.path.starts_with(stages) ? "stages.two." + key.path.substr(stages.size()) : key.path;
    INFO(path);
    // No key holds a date: each is found, and says what it accepts.
    try {
      with({{path, "2020-01-01"}});
      FAIL("accepted");
    } catch (const Error& error) {
      const std::string message = error.what();
      INFO(message);
      CHECK(message.find("'" + key.path + "' is a date or time") != std::string::npos);
      CHECK(message.find("accepted: ") != std::string::npos);
      CHECK(message.find(key.accepted) != std::string::npos);
    }
    ++keys;
  }
  CHECK(keys > 80);
}

const std::vector<std::vector<Assignment>>& samples() {
  static const std::vector<std::vector<Assignment>> list = {
      {},
      {{"seed", "7"}, {"optimizer.epsilon", "3e-7"}, {"model.head_dim", "32"}},
      {{"model.hidden_size", "128"}, {"stages.one.batch_sequences", "8"}},
      {{"stages.one.batch_sequences", "8"}, {"stages.one.micro_batch_sequences", "2"}},
      {{"stages.one.steps", "3"}},
      {{"stages.two.objective.kind", "policy_gradient"}},
      {{"optimizer.kind", "lion"}, {"optimizer.first_moment", "e4m3fn/1x128/expand"}},
      {{"optimizer.weights", "fp16/tensor/pow2"}, {"optimizer.update_moments", "unrounded"}},
      {{"optimizer.group", "[{match = \"embedding\", learning_rate = 0.5}]"}},
      {{"optimizer.group", "[{match = \"layers\", base_inputs = 256}]"}},
      {{"model.linear_alpha", "inverse_sqrt_in"}, {"model.head_alpha", "inverse_in"}},
      {{"model.stream_factor", "0.75"}, {"model.branch_factor", "0.5"}},
      {{"model.embedding_factor", "16"}, {"model.feed_forward", "relu2"}},
      {{"model.final_norm", "false"}, {"model.softmax_scale", "0.125"}},
      {{"model.zero_centered_norms", "true"}, {"model.fused_projections", "true"}},
      {{"model.qk_norm", "true"},
       {"model.qk_norm_frozen", "true"},
       {"model.feed_forward", "xielu"}},
      {{"model.norm_place", "both"},
       {"model.scaled_norm_init", "true"},
       {"model.feed_forward", "geglu_tanh"}},
      {{"stages.one.learning_rate.kind", "cosine"}, {"stages.one.eval.sequences", "2"}},
      {{"model.rope_scaling",
        "{rope_type = \"yarn\", factor = 4, original_max_position_embeddings = 1024}"}},
      {{"stages.*.data", "{kind = \"jsonl\", path = \"a\", range = [0.1, 0.2]}"},
       {"stages.*.eval.data", "{}"}},
      {{"stages.*.data", "{kind = \"jsonl\", path = \"a\"}"},
       {"stages.*.eval.data.kind", "arithmetic"}},
      {{"stages.one.data.sources", "[{families = [\"sum\"]}, {problems = 9, weight = 2}]"},
       {"stages.one.eval.sequences", "2"}},
      {{"stages.one.data.form", "prompt_response"},
       {"stages.one.eval.pass_at_k.k", "[1, 8]"},
       {"stages.one.eval.rollout.temperature", "0.5"}},
      {{"stages.one.recipe_at",
        "[{step = 2, recipe = \"infir2\"}, {step = 4, recipe = \"bf16\"}]"}},
      {{"stages.two.fallback", "{recipe = \"bf16\", when = {nonfinite = true}}"}},
      {{"stages.two.fallback", "{recipe = \"bf16\", when = {gradient_norm = 8, window = 9}}"}},
  };
  return list;
}

TEST_CASE("the canonical text has no defaults and means the same") {
  CHECK(canonical_text(with({})).find("optimizer") == std::string::npos);
  CHECK(canonical_text(with({{"optimizer.beta1", "0.9"}})) == canonical_text(with({})));
  CHECK(with({{"stages.one.objective.kind", "cross_entropy"}}).hash == with({}).hash);
  CHECK(canonical_text(with({{"optimizer.beta1", "0.8"}})).find("[optimizer]\nbeta1 = 0.8\n") !=
        std::string::npos);
  const auto check = [](const RunConfig& config) {
    const std::string canonical = canonical_text(config);
    INFO(canonical);
    CHECK(canonical.size() < config.text.size());
    const RunConfig again = parse_run_config(canonical, "canonical", {});
    CHECK(again.text == config.text);
    CHECK(again.hash == config.hash);
    CHECK(again.stages == config.stages);
    CHECK(canonical_text(again) == canonical);
  };
  for (const std::vector<Assignment>& assignments : samples()) check(with(assignments));
  for (const std::string& name : experiment_names("presets")) check(load_preset(name, {}));
}

TEST_CASE("each configuration has its own hash, whatever way it is written") {
  std::vector<std::string> hashes;
  for (const std::vector<Assignment>& assignments : samples()) {
    hashes.push_back(with(assignments).hash);
  }
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end());
  const std::string hash = with({}).hash;
  // Defaults, what does not matter, and what is hashed by its content or changes no bit.
  for (const std::vector<Assignment>& same : std::vector<std::vector<Assignment>>{
           {{"seed", "1"}, {"logging.every_steps", "1"}},
           {{"model.head_dim", "64"}, {"stages.one.micro_batch_sequences", "4"}},
           {{"stages.one.stress", "[]"}},
           {{"stages.one.planted_outliers.channels", "0"}},  // as runs stored it that had none
           {{"name", "other"}, {"backend", "truth"}, {"recipe", "infir2"}},
           {{"init_from", "somewhere"}, {"stages.one.recipe", "infir2"}},
           {{"stages.two.eval.multiple_choice", "q.jsonl"}}}) {
    INFO(same.front().key);
    CHECK(with(same).hash == hash);
  }
  const auto stressed = [](const std::string& keys) {
    return with({{"stages.one.stress", "[{" + keys + "}]"}}).hash;
  };
  CHECK(stressed("kind = \"spike\"") != hash);
  CHECK(stressed("kind = \"spike\", at_step = 0, factor = 64") == stressed("kind = \"spike\""));
  CHECK(stressed("kind = \"spike\", at_step = 1") != stressed("kind = \"spike\""));
  // A recipe within a stage is hashed by its content, as that of the stage.
  const auto changing = [](const std::string& change) {
    return with({{"stages.one.recipe_at", "[{" + change + "}]"}}).hash;
  };
  CHECK(changing("step = 2, recipe = \"bf16\"") != hash);
  CHECK(changing("step = 2, recipe = \"bf16\"") == changing("step = 2, recipe = \"infir2\""));
  CHECK(changing("step = 2, recipe = \"bf16\"") != changing("step = 3, recipe = \"bf16\""));
}

// A struct of two releases: the second has a key more.
struct Engine {
  std::int64_t cylinders = 4;
  bool has_turbo = false;
  double boost = 1.5;
};

Table<Engine> engine_table(bool second_release) {
  using namespace fields;  // NOLINT: the vocabulary of tables
  Table<Engine> table{{integer("cylinders", &Engine::cylinders, 1, 16, "cylinders in a row")}};
  if (!second_release) return table;
  const auto has_turbo = [](const Engine& engine) { return engine.has_turbo; };
  table.fields.push_back(boolean("turbo", &Engine::has_turbo, "air is compressed"));
  table.fields.push_back(number("boost", &Engine::boost, 1.0, 3.0, "pressure before it, in bar")
                             .when(has_turbo, "turbo = true"));
  return table;
}

TEST_CASE("a key that is added leaves the canonical text of what does not use it") {
  const auto text = [](const Table<Engine>& table, const Engine& engine, Keys keys) {
    return table_text(table, engine, {}, "", "", true, keys);
  };
  const Table<Engine> before = engine_table(false), after = engine_table(true);
  Engine engine;
  engine.cylinders = 6;
  CHECK(text(after, engine, Keys::canonical) == text(before, engine, Keys::canonical));
  CHECK(text(after, engine, Keys::complete) == "cylinders = 6\nturbo = false\n");
  engine.boost = 2.0;  // does not matter
  CHECK(text(after, engine, Keys::canonical) == "cylinders = 6\n");
  engine.has_turbo = true;
  CHECK(text(after, engine, Keys::canonical) == "cylinders = 6\nturbo = true\nboost = 2.0\n");
}

TEST_CASE("the epsilon of RMSNorms is refused where none is, also with tanh of queries and keys") {
  std::vector<Assignment> model = {{"model.norm", "layernorm"},
                                   {"model.qk_norm", "true"},
                                   {"model.qk_norm_over", "elements"},
                                   {"model.rms_norm_eps", "1e-5"}};
  CHECK_THROWS_WITH(with(model), Catch::Contains("rms_norm_eps") && Catch::Contains("is for norm"));
  model[2].value = "head";
  CHECK(with(model).model.rms_norm_eps == 1e-5);
}

TEST_CASE("a row reads, refuses and forgets") {
  const Table<Engine> table = engine_table(true);
  const auto read = [&](const std::string& text, Engine start = {}) {
    const toml::table root = parse_toml(text, "e.toml");
    TomlReader reader(root, "", "e.toml");
    read_table(reader, table, start);
    return start;
  };
  CHECK(read("turbo = true\nboost = 2\n").boost == 2.0);
  CHECK(read("cylinders = 16\n").cylinders == 16);
  CHECK(read("", {8, false, 2.5}).cylinders == 8);
  CHECK(read("", {8, false, 2.5}).boost == 1.5);
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"cylinders = 17",
            "e.toml:1:1: 'cylinders' is the integer 17; accepted: an integer "
            "from 1 to 16"},
           {"cylinders = [1, 2]", "'cylinders' is the list [1, 2]; accepted: an integer"},
           {"turbo = 1", "'turbo' is the integer 1; accepted: true or false"},
           {"turbo = true\nboost = nan", "e.toml:2:1: 'boost' is the number nan"},
           {"\nboost = 2.0", "e.toml:2:1: 'boost': is for turbo = true"},
           {"trubo = true",
            "unknown key 'trubo' (did you mean 'turbo'?); accepted: cylinders, "
            "turbo, boost"}}) {
    CHECK_THROWS_WITH(read(text), Catch::Contains(message));
  }
}

TEST_CASE("a default that follows from other keys has their bounds") {
  CHECK_THROWS_WITH(with({{"model", "{hidden_size = 2, num_attention_heads = 4}"}}),
                    Catch::Contains("'model.head_dim' is 0, by hidden_size / num_attention_heads; "
                                    "accepted: an integer from 2 to 1024"));
  CHECK(with({{"model.hidden_size", "512"}}).model.head_dim == 128);
  CHECK(with({{"stages.one.batch_sequences", "6"}}).stages[0].micro_batch_sequences == 6);
  CHECK(with({{"stages.one.steps", "3"}}).stages[0].learning_rate.warmup_steps == 3);
}

TEST_CASE("every word that a key accepts is explained") {
  CHECK(unexplained_values() == std::vector<std::string>{});
  CHECK(value_help("no such word").empty());
  CHECK(value_help("nearest").find("scale_rounding") != std::string::npos);  // and of rounding
  CHECK(value_help("nearest").find("ties to the even one") != std::string::npos);
}

}  // namespace
}  // namespace fp8lab
