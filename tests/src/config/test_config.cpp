// Run and study files: what they mean, that the resolved text means the same, what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/experiments.hpp"
#include "tests/error_fields.hpp"
#include "tests/scratch_directory.hpp"

namespace fp8lab {
namespace {

const std::string kRun =
    "name = \"r\"\n"
    "recipe = \"infir2\"\n"
    "model = \"tiny\"\n"
    "[[stages]]\n"
    "name = \"one\"\n"
    "steps = 30\n"
    "[[stages]]\n"
    "base = \"sft\"\n"
    "name = \"two\"\n"
    "learning_rate.peak = 0.003\n";

ErrorFields refusal(const std::string& text, const std::vector<Assignment>& assignments = {}) {
  return fields_thrown_by([&] { parse_run_config(text, "c.toml", assignments); });
}

void check_same(const RunConfig& a, const RunConfig& b) {
  CHECK(a.text == b.text);
  CHECK(a.hash == b.hash);
  CHECK(a.name == b.name);
  CHECK(a.recipe == b.recipe);
  CHECK(a.backend == b.backend);
  CHECK(a.seed == b.seed);
  CHECK(a.init_from == b.init_from);
  CHECK(a.model == b.model);
  CHECK(a.optimizer.update.beta2 == b.optimizer.update.beta2);
  CHECK(a.optimizer.update.epsilon == b.optimizer.update.epsilon);
  CHECK(a.optimizer.weights == b.optimizer.weights);
  CHECK(a.optimizer.gradients == b.optimizer.gradients);
  CHECK(a.optimizer.first_moment == b.optimizer.first_moment);
  CHECK(a.logging.statistics_every_steps == b.logging.statistics_every_steps);
  CHECK(a.logging.nonfinite == b.logging.nonfinite);
  CHECK(a.attention.q_tile == b.attention.q_tile);
  CHECK(a.stages == b.stages);
}

TEST_CASE("a run file with references") {
  const RunConfig config = parse_run_config(kRun, "c.toml", {});
  CHECK(config.model.hidden_size == 256);
  CHECK(config.model.intermediate_size == 512);
  REQUIRE(config.stages.size() == 2);
  CHECK(config.stages[0].steps == 30);
  CHECK(config.stages[0].data.form == DataForm::running_text);
  CHECK_FALSE(config.stages[0].eval.has_value());
  CHECK(config.stages[1].name == "two");
  CHECK(config.stages[1].kind == StageKind::sft);
  CHECK(config.stages[1].learning_rate.peak == 0.003);
  CHECK(config.stages[1].learning_rate.kind == ScheduleKind::cosine);
  REQUIRE(config.stages[1].eval.has_value());
  CHECK(config.stages[1].eval->data.sources[0].held_out);
  CHECK(config.stages[1].eval->data.form == DataForm::prompt_response);
  CHECK(config.hash.size() == 16);
}

TEST_CASE("the resolved text reparses identically") {
  const std::vector<std::vector<Assignment>> cases = {
      {},
      {{"optimizer.beta2", "0.999"},
       {"optimizer.weights", "bf16"},
       {"optimizer.first_moment", "bf16"},
       {"optimizer.epsilon", "3e-7"},
       {"logging.nonfinite", "keep_going"},
       {"attention.q_tile", "32"},
       {"init_from", "runs/a \"quoted\" \\ name/weights"},
       {"model.qkv_bias", "false"},
       {"model.rope_theta", "12345.678"},
       {"seed", "9223372036854775807"}},
      {{"model.o_bias", "true"},
       {"model.mlp_bias", "true"},
       {"model.qk_norm", "true"},
       {"model.rope_scaling",
        "{rope_type = \"yarn\", factor = 4, original_max_position_embeddings = 1024, "
        "beta_fast = 16, truncate = false, attention_factor = 1.25}"}},
      {{"model.rope_scaling",
        "{rope_type = \"llama3\", factor = 32, original_max_position_embeddings = 8192, "
        "low_freq_factor = 1.5}"}},
      {{"model.rope_scaling", "{rope_type = \"linear\", factor = 2.5}"}},
      {{"model.rope_scaling", "{rope_type = \"dynamic\", factor = 2.0}"}},
      {{"stages.*.data.kind", "jsonl"},
       {"stages.*.data.path", "data/train.jsonl"},
       {"stages.*.data.range", "[0.125, 0.3]"},
       {"stages.*.eval.data.path", "data/test.jsonl"},
       {"stages.one.eval.every_steps", "7"},
       {"stages.one.stress",
        "[{kind = \"spike\", at_step = 3}, {kind = \"aligned_swiglu\", layers = \"layers.last\"}]"},
       {"stages.two.stress",
        "[{kind = \"outlier_channels\", gain = 4096, channels = 4, over_steps = 5}]"},
       {"stages.two.recipe", "te_current"}},
  };
  for (const std::vector<Assignment>& assignments : cases) {
    const RunConfig config = parse_run_config(kRun, "c.toml", assignments);
    check_same(config, parse_run_config(config.text, "again", {}));
  }
  for (const std::string& name : experiment_names("presets")) {
    INFO(name);
    const RunConfig config = load_run_config(find_experiment("presets", name, ""), {});
    check_same(config, parse_run_config(config.text, "again", {}));
  }
}

TEST_CASE("steps of a stage may be given as fractions of it") {
  const std::vector<Assignment> fractions = {{"stages.one.steps", "740"},
                                             {"stages.one.learning_rate.warmup_steps", "0.05"},
                                             {"stages.one.learning_rate.decay_steps", "0.25"},
                                             {"stages.one.eval.every_steps", "1.0"}};
  const std::vector<Assignment> steps = {{"stages.one.steps", "740"},
                                         {"stages.one.learning_rate.warmup_steps", "37"},
                                         {"stages.one.learning_rate.decay_steps", "185"},
                                         {"stages.one.eval.every_steps", "740"}};
  check_same(parse_run_config(kRun, "c.toml", fractions), parse_run_config(kRun, "c.toml", steps));
  const auto warmup = [](const std::string& value, const std::string& stage_steps) {
    return parse_run_config(kRun, "c.toml",
                            {{"stages.one.learning_rate.warmup_steps", value},
                             {"stages.one.steps", stage_steps}})
        .stages[0]
        .learning_rate.warmup_steps;
  };
  CHECK(warmup("0.05", "750") == 38);
  CHECK(warmup("0.05", "749") == 37);
  CHECK(warmup("1e-9", "750") == 1);
  CHECK(warmup("0.0", "750") == 0);
  CHECK(warmup("1.0", "750") == 750);
  CHECK(warmup("1", "750") == 1);
}

TEST_CASE("one number scales everything that counts steps of training") {
  const auto scaled = [&](double scale, const std::vector<Assignment>& assignments = {}) {
    return parse_run_config(kRun, "c.toml", assignments, scale);
  };
  const auto as_steps = [&](const std::string& one, const std::string& one_warmup,
                            const std::string& two, const std::string& two_warmup,
                            const std::string& eval, const std::string& statistics,
                            const std::string& checkpoint) {
    return parse_run_config(kRun, "c.toml",
                            {{"stages.one.steps", one},
                             {"stages.one.learning_rate.warmup_steps", one_warmup},
                             {"stages.two.steps", two},
                             {"stages.two.learning_rate.warmup_steps", two_warmup},
                             {"stages.two.eval.every_steps", eval},
                             {"logging.statistics_every_steps", statistics},
                             {"logging.checkpoint_every_steps", checkpoint}});
  };
  const RunConfig plain = scaled(1);
  const std::int64_t two = plain.stages[1].steps;
  const std::int64_t warmup = plain.stages[1].learning_rate.warmup_steps;
  const std::int64_t eval = plain.stages[1].eval->every_steps;
  CHECK(plain.text == parse_run_config(kRun, "c.toml", {}).text);
  check_same(scaled(3), as_steps("90", "30", std::to_string(3 * two), std::to_string(3 * warmup),
                                 std::to_string(3 * eval), "60", "300"));
  check_same(scaled(0.1), as_steps("3", "1", std::to_string((two + 5) / 10), "1",
                                   std::to_string((eval + 5) / 10), "2", "10"));
  CHECK(scaled(0.1).hash != plain.hash);
  CHECK(scaled(0.001).stages[0].steps == 1);
  CHECK(scaled(0.25).stages[0].steps == 8);
  // A stage shorter than the default warm-up keeps a warm-up that fits when it is made longer.
  CHECK(scaled(10, {{"stages.one.steps", "5"}}).stages[0].learning_rate.warmup_steps == 50);
  // What says "never" still does; what is no count of steps stays.
  const RunConfig never =
      scaled(0.5, {{"logging.checkpoint_every_steps", "0"}, {"logging.every_steps", "4"}});
  CHECK(never.logging.checkpoint_every_steps == 0);
  CHECK(never.logging.every_steps == 4);
  CHECK(never.stages[0].batch_sequences == plain.stages[0].batch_sequences);
  // Fractions are of the scaled steps: 0.05 of 75 are 4, of 750 times 0.1 as well; 38 times 100
  // were 3800, not 3750.
  const std::vector<Assignment> share = {{"stages.one.steps", "750"},
                                         {"stages.one.learning_rate.warmup_steps", "0.05"}};
  CHECK(scaled(0.1, share).stages[0].learning_rate.warmup_steps == 4);
  CHECK(scaled(100, share).stages[0].learning_rate.warmup_steps == 3750);
}

TEST_CASE("what a scale makes impossible names it") {
  const auto message = [](const std::vector<Assignment>& assignments, double scale) {
    try {
      parse_run_config(kRun, "c.toml", assignments, scale);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string large = message({{"stages.one.steps", "1099511627776"}}, 2);
  INFO(large);
  CHECK(large != "accepted");
  const std::string short_stage = message({{"stages.one.learning_rate.decay_steps", "10"}}, 0.01);
  INFO(short_stage);
  CHECK(short_stage.find("assignment 'scale=0.01'") != std::string::npos);
  CHECK(short_stage.find("do not fit into steps = 1") != std::string::npos);
  for (const double bad : {0.0, -1.0, 1000.5, std::nan("")}) {
    CHECK_THROWS_AS(check_scale(bad, "--scale"), Error);
  }
  CHECK_NOTHROW(check_scale(1000, "--scale"));
}

TEST_CASE("a stage reads one source or a mixture of several") {
  const std::string text =
      "[[stages]]\nbase = \"cpt\"\n[[stages.data.sources]]\nkind = \"tokens\"\n"
      "path = [\"a\", \"b\"]\nweight = 3\ndocument_end = 7\n[[stages.data.sources]]\n"
      "kind = \"jsonl\"\npath = \"c\"\nrange = [0.5, 1.0]\n[stages.eval]\ndata.kind = \"text\"\n"
      "data.path = \"d\"\n";
  const RunConfig config = parse_run_config(text, "c.toml", {});
  const DataConfig& data = config.stages[0].data;
  REQUIRE(data.sources.size() == 2);
  CHECK(data.form == DataForm::running_text);
  CHECK(data.sources[0].kind == DataKind::tokens);
  CHECK(data.sources[0].paths == std::vector<std::filesystem::path>{"a", "b"});
  CHECK(data.sources[0].weight == 3.0);
  CHECK(data.sources[0].delimiter.end == 7);
  CHECK(data.sources[1].weight == 1.0);
  CHECK(data.sources[1].range_begin == 0.5);
  check_same(config, parse_run_config(config.text, "again", {}));
  const RunConfig one = parse_run_config(
      text, "c.toml", {{"stages.cpt.data.sources", "[{kind = \"tokens\", path = \"x\"}]"}});
  CHECK(one.stages[0].data.sources.size() == 1);
  check_same(one, parse_run_config(one.text, "again", {}));
  const RunConfig generated = parse_run_config(
      "[[stages]]\nbase = \"cpt\"\n[[stages.data.sources]]\nfamilies = [\"sum\"]\n"
      "[[stages.data.sources]]\nfamilies = [\"shop\"]\nweight = 0.5\n",
      "c.toml", {});
  REQUIRE(generated.stages[0].eval->data.sources.size() == 2);
  CHECK(generated.stages[0].eval->data.sources[1].held_out);
  CHECK(generated.stages[0].eval->data.sources[1].weight == 0.5);
}

TEST_CASE("assignments") {
  const auto with = [](const std::vector<Assignment>& assignments) {
    return parse_run_config(kRun, "c.toml", assignments);
  };
  CHECK(with({{"recipe", "bf16"}}).recipe == "bf16");
  CHECK(with({{"recipe", "\"bf16\""}}).recipe == "bf16");
  CHECK(with({{"recipe", "bf16"}, {"recipe", "te_current"}}).recipe == "te_current");
  CHECK(with({{"stages.*.steps", "50"}}).stages[1].steps == 50);
  CHECK(with({{"stages.one.steps", "50"}}).stages[0].steps == 50);
  CHECK(with({{"stages.one.steps", "50"}}).stages[1].steps == 40);
  CHECK(with({{"stages.one.data.families", "[\"sum\", \"shop\"]"}})
            .stages[0]
            .data.sources[0]
            .families == std::vector<std::string>{"sum", "shop"});
  CHECK(with({{"model", "small"}, {"model.num_hidden_layers", "3"}}).model.hidden_size == 384);
  CHECK(with({{"model", "small"}, {"model.num_hidden_layers", "3"}}).model.layer_count() == 3);
  CHECK(with({{"model.num_hidden_layers", "3"}, {"model", "small"}}).model.layer_count() == 4);
  // Another base keeps the keys that the file gives beside it, wherever it stands.
  const std::string wide = "model = { base = \"tiny\", vocab_size = 4096 }\n" +
                           std::string(kRun).substr(std::string(kRun).find("[[stages]]"));
  const auto based = [&](const std::vector<Assignment>& assignments) {
    return parse_run_config(wide, "c.toml", assignments).model;
  };
  CHECK(based({{"model.base", "small"}}).hidden_size == 384);
  CHECK(based({{"model.base", "small"}}).vocab_size == 4096);
  CHECK(based({{"model.hidden_size", "320"}, {"model.base", "small"}}).hidden_size == 320);
  CHECK(with({{"model.base", "small"}}).model.hidden_size == 384);
  // Text that would add a key of its own is a string, not TOML.
  CHECK(with({{"init_from", "a\nseed = 5"}}).seed == 1);
  CHECK(with({{"seed", "2"}}).hash != with({}).hash);
}

TEST_CASE("bad configurations are refused with place, key and what is accepted") {
  struct Row {
    std::string text;
    ErrorFields expected;
  };
  const std::string stage = "[[stages]]\nname = \"s\"\nsteps = 30\n";
  const std::string stress = stage + "[[stages.stress]]\n";
  const std::string outliers = stress + "kind = \"outlier_channels\"\n";
  const std::string spike = stress + "kind = \"spike\"\n";
  const std::string aligned = stress + "kind = \"aligned_swiglu\"\n";
  const std::string scaling = stage + "[model.rope_scaling]\n";
  const std::string yarn = scaling + "rope_type = \"yarn\"\nfactor = 4\n";
  const Row rows[] = {
      {"sed = 1\n" + stage,
       {.where = "c.toml:1:1",
        .noun = "unknown key",
        .key = "sed",
        .accepted = "name, recipe, backend"}},
      {"name = \"x\"\n", {.key = "stages", .reason = "is missing", .accepted = "[[stages]]"}},
      {"= 1\n", {.where = "c.toml:1:", .reason = "not TOML"}},
      {stage + "stepz = 1\n",
       {.where = "c.toml:4:1", .key = "stages.stepz", .accepted = "steps, batch_sequences"}},
      {"[model]\nhidden = 1\n" + stage,
       {.where = "c.toml:2:1", .key = "model.hidden", .accepted = "hidden_size"}},
      {"[optimizer]\nlr = 1\n" + stage, {.key = "optimizer.lr", .accepted = "beta1, beta2"}},
      {"[logging]\nevery = 1\n" + stage, {.key = "logging.every", .accepted = "every_steps"}},
      {"[attention]\ntile = 1\n" + stage, {.key = "attention.tile", .accepted = "kv_tile, q_tile"}},
      {"[attention]\nkv_tile = 24\n" + stage,
       {.key = "attention.kv_tile", .accepted = "a multiple of 16"}},
      {"[attention]\nq_tile = 0\n" + stage,
       {.key = "attention.q_tile", .accepted = "a multiple of 16"}},
      {stage + "[stages.data]\nfile = \"x\"\n", {.key = "stages.data.file", .accepted = "path"}},
      {stage + "[stages.eval]\nsteps = 1\n",
       {.key = "stages.eval.steps", .accepted = "every_steps"}},
      {stage + "[stages.learning_rate]\nmax = 1\n",
       {.key = "stages.learning_rate.max", .accepted = "peak"}},
      {stage + "[[stages.stress]]\nkind = \"spike\"\nn = 1\n",
       {.key = "stages.stress.n", .accepted = "factor"}},
      {"seed = -1\n" + stage,
       {.where = "c.toml:1:1", .found = "the integer -1", .accepted = "at least 0"}},
      {"seed = 1.5\n" + stage, {.found = "the number 1.5", .accepted = "an integer"}},
      {"seed = 2020-01-01\n" + stage, {.found = "a date or time", .accepted = "an integer"}},
      {"model = 3\n" + stage, {.key = "model", .found = "the integer 3", .accepted = "a table"}},
      {"model = \"huge\"\n" + stage,
       {.where = "c.toml:1:9",
        .noun = "unknown model",
        .key = "huge",
        .accepted = "small, smollm2-135m, tiny"}},
      {"stages = [1]\n", {.accepted = "a list of tables, [[stages]]"}},
      {"[[stages]]\nbase = \"rl\"\n",
       {.where = "c.toml:2:8",
        .noun = "unknown stage",
        .key = "rl",
        .accepted = "cpt, pretrain, sft"}},
      {"[[stages]]\nbase = 3\n",
       {.key = "base", .reason = "is no string", .accepted = "cpt, pretrain, sft"}},
      {"recipe = \"infir3\"\n" + stage,
       {.where = "c.toml:1:1", .noun = "unknown recipe", .key = "infir3", .nearest = "'infir2'"}},
      {stage + "recipe = \"infir3\"\n",
       {.where = "c.toml:4:1", .noun = "unknown recipe", .key = "infir3"}},
      {"backend = \"tpu\"\n" + stage,
       {.key = "backend", .found = "'tpu'", .accepted = "cpu, truth, cuda"}},
      {"math = \"fast\"\n" + stage, {.noun = "unknown key", .key = "math", .accepted = "backend"}},
      {"[model]\nhead_dim = 63\n" + stage, {.key = "model.head_dim", .reason = "odd"}},
      {"[model]\nnum_key_value_heads = 3\n" + stage,
       {.found = "3", .reason = "does not divide num_attention_heads = 4"}},
      {scaling,
       {.where = "c.toml:4:1",
        .key = "model.rope_scaling.rope_type",
        .reason = "is missing",
        .accepted = "linear, dynamic"}},
      {scaling + "rope_type = \"longrope\"\n",
       {.found = "'longrope'", .accepted = "default, linear, dynamic, yarn"}},
      {scaling + "rope_type = \"linear\"\n",
       {.key = "model.rope_scaling.factor", .reason = "is missing"}},
      {scaling + "rope_type = \"default\"\nfactor = 2\n",
       {.where = "c.toml:6:1", .reason = "scales nothing"}},
      {scaling + "rope_type = \"linear\"\nfactor = 0.5\n", {.key = "model.rope_scaling.factor"}},
      {yarn,
       {.key = "model.rope_scaling.original_max_position_embeddings",
        .reason = "is missing",
        .accepted = "pre-training length"}},
      {yarn + "low_freq_factor = 1\n", {.where = "c.toml:7:1", .reason = "rope_type = \"llama3\""}},
      {scaling + "rope_type = \"linear\"\nfactor = 2\noriginal_max_position_embeddings = 9\n",
       {.where = "c.toml:7:1", .reason = "rope_type = \"yarn\" or \"llama3\""}},
      {yarn + "original_max_position_embeddings = 9\nbeta_slow = 40\n",
       {.key = "model.rope_scaling.beta_fast",
        .found = "32",
        .accepted = "more than beta_slow = 40"}},
      {scaling + "rope_type = \"llama3\"\nfactor = 8\noriginal_max_position_embeddings = 9\n"
                 "low_freq_factor = 4\n",
       {.key = "model.rope_scaling.high_freq_factor",
        .found = "4",
        .accepted = "more than low_freq_factor = 4"}},
      {"[optimizer]\nbeta1 = 1.0\n" + stage,
       {.key = "optimizer.beta1", .found = "the number 1", .accepted = "0 to 0.99999"}},
      {"[optimizer]\nclip_norm = inf\n" + stage,
       {.key = "optimizer.clip_norm", .accepted = "a number"}},
      {"[optimizer]\nfirst_moment = \"fp8\"\n" + stage,
       {.found = "'fp8'", .accepted = "bf16, fp32"}},
      {"[logging]\nhash_every_step = 1\n" + stage,
       {.found = "the integer 1", .accepted = "true or false"}},
      {"[[stages]]\nsteps = 3\n", {.key = "stages.name", .reason = "is missing"}},
      {"[[stages]]\nname = \"a b\"\n", {.found = "'a b'", .accepted = "letters, digits"}},
      {stage + stage, {.where = "c.toml:5:1", .reason = "two stages are called 's'"}},
      {"[optimizer]\ngradients = \"bf16\"\n" + stage +
           "batch_sequences = 6\nmicro_batch_sequences = 3\n",
       {.reason = "2 micro-batches, whose gradients are added: optimizer.gradients"}},
      {stage + "batch_sequences = 6\nmicro_batch_sequences = 4\n",
       {.where = "c.toml:5:1", .found = "4", .reason = "does not divide batch_sequences = 6"}},
      {stage + "sequence_length = 8192\n",
       {.found = "8192", .reason = "exceeds model.max_position_embeddings = 4096"}},
      {stage + "[stages.learning_rate]\nwarmup_steps = 20\ndecay_steps = 11\n",
       {.where = "c.toml:5:1", .reason = "do not fit into steps = 30"}},
      {stage + "[stages.learning_rate]\nkind = \"cosine\"\ndecay_steps = 11\n",
       {.reason = "kind = \"wsd\""}},
      {stage + "[stages.planted_outliers]\nchannels = 4\n",
       {.where = "c.toml:4:",
        .key = "stages.planted_outliers",
        .accepted = "[[stages.stress]] with kind = \"outlier_channels\""}},
      {stage + "[stages.stress]\nkind = \"spike\"\n",
       {.accepted = "a list of tables, [[stages.stress]]"}},
      {stress,
       {.key = "stages.stress.kind",
        .reason = "is missing",
        .accepted = "outlier_channels, aligned_swiglu, spike"}},
      {stress + "kind = \"spikes\"\n", {.found = "'spikes'", .nearest = "'spike'"}},
      {outliers,
       {.key = "stages.stress.gain", .reason = "is missing", .accepted = "a power of two"}},
      {outliers + "gain = 3000.0\n", {.found = "the number 3000", .accepted = "a power of two"}},
      {outliers + "gain = 2\nchannels = 0\n",
       {.key = "stages.stress.channels", .accepted = "from 1 to"}},
      {outliers + "gain = 2\nchannels = 257\n", {.accepted = "from 1 to 256"}},
      {outliers + "gain = 2\nfactor = 2\n",
       {.key = "stages.stress.factor", .reason = "or \"spike\""}},
      {outliers + "gain = 2\nat_step = 20\nover_steps = 11\n",
       {.where = "c.toml:7:1",
        .reason = "at_step = 20 and over_steps = 11 do not fit into steps = 30"}},
      {spike + "at_step = 30\n", {.key = "stages.stress.at_step", .reason = "steps = 30"}},
      {spike + "at_step = -1\n", {.key = "stages.stress.at_step", .accepted = "a fraction"}},
      {spike + "factor = 48\n", {.key = "stages.stress.factor", .accepted = "a power of two"}},
      {spike + "channels = 1\n", {.key = "stages.stress.channels", .reason = "aligned_swiglu"}},
      {spike + "over_steps = 2\n",
       {.key = "stages.stress.over_steps", .reason = "outlier_channels"}},
      {aligned + "channels = 513\n", {.accepted = "from 1 to 512"}},
      {aligned + "layers = \"layers.7\"\n",
       {.found = "'layers.7'", .reason = "no feed-forward", .accepted = "of 2 layers"}},
      {aligned + "layers = \"layers.*.attention.qkv\"\n", {.reason = "no feed-forward"}},
      {"[model]\nfeed_forward = \"gelu_tanh\"\n" + aligned,
       {.key = "stages.stress.kind", .accepted = "swiglu"}},
      {stage + "[stages.data]\nkind = \"jsonl\"\n",
       {.key = "stages.data.path", .reason = "is missing", .accepted = "a file"}},
      {stage + "[stages.data]\npath = \"x\"\n",
       {.key = "stages.data.path", .reason = "reads no file"}},
      {stage + "[stages.data]\nkind = \"jsonl\"\npath = \"x\"\nproblems = 3\n",
       {.key = "stages.data.problems", .reason = "arithmetic"}},
      {stage + "[stages.data]\nkind = \"text\"\npath = \"x\"\nform = \"prompt_response\"\n",
       {.key = "stages.data.form", .reason = "no prompts"}},
      {stage + "[stages.data]\nrange = [0.5, 0.5]\n",
       {.key = "stages.data.range", .accepted = "begin < end"}},
      {stage + "[stages.data]\nrange = [0.5]\n",
       {.key = "stages.data.range", .accepted = "[begin, end]"}},
      {stage + "[stages.data]\nkind = \"jsonl\"\npath = \"x\"\n[stages.eval]\nsequences = 2\n",
       {.key = "stages.eval.data",
        .reason = "missing; a stage that reads files names its held-out"}},
      {stage + "[stages.data]\nkind = \"tokens\"\npath = []\n",
       {.key = "stages.data.path", .accepted = "a list"}},
      {stage + "[stages.data]\nkind = \"tokens\"\npath = [\"a\", \"\"]\n",
       {.key = "stages.data.path"}},
      {stage + "[stages.data]\nkind = \"tokens\"\npath = 3\n", {.accepted = "a list of strings"}},
      {stage + "[stages.data]\nkind = \"tokens\"\npath = \"a\"\ndocument_end = -1\n",
       {.key = "stages.data.document_end", .accepted = "0 to 2147483647"}},
      {stage + "[stages.data]\nkind = \"tokens\"\npath = \"a\"\ndocument_end = 1\n"
               "document_begin = 2\n",
       {.key = "stages.data.document_end", .reason = "either"}},
      {stage + "[stages.data]\nkind = \"text\"\npath = \"a\"\ndocument_end = 1\n",
       {.key = "stages.data.document_end", .reason = "kind = \"tokens\""}},
      {stage + "[stages.data]\nweight = 2\n", {.noun = "unknown key", .key = "stages.data.weight"}},
      {stage + "[stages.data]\nsources = []\n",
       {.key = "stages.data.sources", .accepted = "at least one"}},
      {stage + "[stages.data]\nsources = [3]\n",
       {.accepted = "a list of tables, [[stages.data.sources]]"}},
      {stage + "[stages.data]\nkind = \"text\"\n[[stages.data.sources]]\nproblems = 3\n",
       {.noun = "unknown key", .key = "stages.data.kind", .accepted = "form, sources"}},
      {stage + "[[stages.data.sources]]\nweight = 0\n",
       {.key = "stages.data.sources.weight", .accepted = "1e-06"}},
      {stage + "[[stages.data.sources]]\nform = \"running_text\"\n",
       {.noun = "unknown key", .key = "stages.data.sources.form"}},
      {stage + "[[stages.data.sources]]\n[[stages.data.sources]]\nkind = \"text\"\npath = \"x\"\n"
               "[stages.eval]\nsequences = 2\n",
       {.key = "stages.eval.data",
        .reason = "missing; a stage that reads files names its held-out"}},
      {stage + "[stages.eval]\nexact_match = 3\n",
       {.key = "stages.eval.exact_match", .accepted = "prompt_response"}},
      {stage + "[stages.eval.pass_at_k]\n",
       {.key = "stages.eval.pass_at_k", .accepted = "prompt_response"}},
      {stage + "[stages.eval.rollout]\n",
       {.key = "stages.eval.rollout", .accepted = "prompt_response"}},
      {stage + "[stages.eval.pass_at_k]\nk = [9]\nsamples = 4\n",
       {.key = "stages.eval.pass_at_k.k", .accepted = "from 1 to samples = 4"}},
      {stage + "[stages.eval.pass_at_k]\nk = 2\n",
       {.key = "stages.eval.pass_at_k.k", .accepted = "a list"}},
      {stage + "[stages.eval.pass_at_k]\nk = [1.5]\n", {.key = "stages.eval.pass_at_k.k"}},
      {stage + "[stages.eval.pass_at_k]\ntop_p = 0\n", {.key = "stages.eval.pass_at_k.top_p"}},
      {stage + "[stages.eval.rollout]\nrecipe = \"no\"\n", {.noun = "unknown recipe", .key = "no"}},
      {stage + "[stages.eval.rollout]\nbucket = 0\n", {.key = "stages.eval.rollout.bucket"}},
      {stage + "[stages.eval.rollout]\nk = 1\n",
       {.noun = "unknown key", .key = "stages.eval.rollout.k"}},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    check_fields(refusal(row.text), row.expected);
  }
}

TEST_CASE("bad assignments name the assignment") {
  struct Row {
    Assignment assignment;
    ErrorFields expected;
  };
  const Row rows[] = {
      {{"stages.three.steps", "1"},
       {.where = "'stages.three.steps=1'",
        .noun = "no stage",
        .key = "three",
        .accepted = "one, two, or *"}},
      {{"stages.one", "1"}, {.reason = "stages.NAME.key"}},
      {{"stages..steps", "1"}, {.reason = "not dotted words"}},
      {{"", "1"}, {.reason = "not dotted words"}},
      {{"optimzer.beta1", "0.5"},
       {.where = "assignment 'optimzer.beta1=0.5'", .noun = "unknown key", .key = "optimzer"}},
      {{"seed", "one"},
       {.where = "assignment 'seed=one'", .found = "the string 'one'", .accepted = "an integer"}},
      {{"recipe.name", "x"},
       {.where = "assignment 'recipe.name=x'", .key = "recipe", .reason = "is no table"}},
      {{"model", "huge"},
       {.where = "assignment 'model=huge'", .noun = "unknown model", .key = "huge"}},
      {{"model.base", "huge"},
       {.where = "assignment 'model.base=huge'", .noun = "unknown model", .key = "huge"}},
      {{"stages.one.base", "cpt"},
       {.where = "'stages.one.base=cpt'", .reason = "cannot be exchanged, but for model.base"}},
      {{"stages.one.steps", "5000000000000"},
       {.where = "assignment 'stages.one.steps", .accepted = "from 1 to"}},
      {{"stages.one.steps", "0.5"},
       {.found = "the number 0.5", .accepted = "an integer from 1 to"}},
      {{"stages.one.learning_rate.warmup_steps", "1.5"},
       {.where = "assignment 'stages.one.learning_rate.warmup_steps=1.5'",
        .found = "the number 1.5",
        .accepted = "or a fraction of the stage's steps from 0.0 to 1.0"}},
      {{"stages.one.learning_rate.warmup_steps", "-0.1"}, {.found = "the number -0.1"}},
      {{"stages.one.learning_rate.warmup_steps", "nan"}, {.found = "the number nan"}},
      {{"stages.one.eval.every_steps", "0.0"},
       {.found = "the number 0", .accepted = "an integer from 1 to"}},
      {{"logging.every_steps", "0.5"}, {.found = "the number 0.5"}},
  };
  for (const Row& row : rows) {
    INFO(row.assignment.key);
    check_fields(refusal(kRun, {row.assignment}), row.expected);
  }
}

// A folder with a study and its base.
class StudyFolder {
 public:
  StudyFolder() { std::ofstream(folder_ / "base.toml") << kRun; }

  StudyConfig load(const std::string& text, const std::vector<Assignment>& assignments = {},
                   std::optional<double> scale = std::nullopt) const {
    std::ofstream(folder_ / "s.toml") << text;
    return load_study_config(folder_ / "s.toml", assignments, scale);
  }

 private:
  ScratchDirectory folder_;
};

TEST_CASE("a shared run for each value of the shared axes") {
  const StudyFolder folder;
  const StudyConfig study = folder.load(
      "base = \"base.toml\"\nshared_stages = [\"one\"]\n"
      "[shared]\naxes = [\"seed\"]\nset = { recipe = \"bf16\" }\n"
      "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n"
      "[[axis]]\nkey = \"seed\"\nvalues = [4, 2]\n"
      "[[arm]]\nname = \"odd\"\n[arm.set]\nseed = 2\nrecipe = \"mxfp8\"\n");
  std::vector<std::string> runs, starts;
  for (const SharedRun& run : study.shared_runs) runs.push_back(run.name);
  for (const StudyArm& arm : study.arms) starts.push_back(arm.shared_run);
  CHECK(runs == std::vector<std::string>{"shared-seed4", "shared-seed2"});
  CHECK(starts == std::vector<std::string>{"shared-seed4", "shared-seed2", "shared-seed4",
                                           "shared-seed2", "shared-seed2"});
  const std::vector<Assignment>& set = study.shared_runs[1].assignments;
  REQUIRE(set.size() == 2);
  CHECK(set[0].key == "recipe");
  CHECK(set[1].value == "2");
}

TEST_CASE("a study expands to the product of its axes, then its arms") {
  const StudyFolder folder;
  const StudyConfig study = folder.load(
      "base = \"base.toml\"\nshared_stages = [\"one\"]\n"
      "[shared]\nset = { recipe = \"bf16\" }\n"
      "[set]\nlogging.every_steps = 2\n\"stages.*.steps\" = 25\n"
      "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n"
      "[[axis]]\nkey = \"seed\"\nvalues = [1, 2]\n"
      "[[axis]]\nkey = \"stages.two.learning_rate.peak\"\nvalues = [1e-3]\n"
      "[[arm]]\nname = \"odd\"\n[arm.set]\nrecipe = \"mxfp8\"\n");
  CHECK(study.name == "s");
  CHECK(study.baseline == "bf16");
  CHECK(study.shared_stages == std::vector<std::string>{"one"});
  REQUIRE(study.shared_runs.size() == 1);
  CHECK(study.shared_runs[0].name == "shared");
  REQUIRE(study.shared_runs[0].assignments.size() == 1);
  CHECK(study.shared_runs[0].assignments[0].key == "recipe");
  for (const StudyArm& arm : study.arms) CHECK(arm.shared_run == "shared");
  std::vector<std::string> names;
  for (const StudyArm& arm : study.arms) names.push_back(arm.name);
  CHECK(names == std::vector<std::string>{"bf16-seed1-peak0.001", "bf16-seed2-peak0.001",
                                          "infir2-seed1-peak0.001", "infir2-seed2-peak0.001",
                                          "odd"});
  std::vector<Assignment> all = study.assignments;
  all.insert(all.end(), study.arms[3].assignments.begin(), study.arms[3].assignments.end());
  const RunConfig config = load_run_config(study.base, all);
  CHECK(config.recipe == "infir2");
  CHECK(config.seed == 2);
  CHECK(config.logging.every_steps == 2);
  CHECK(config.stages[0].steps == 25);
  CHECK(config.stages[1].learning_rate.peak == 1e-3);
}

TEST_CASE("a study gives fractions as well, and whole numbers with a point keep it") {
  const StudyFolder folder;
  const StudyConfig study = folder.load(
      "base = \"base.toml\"\nbaseline = \"infir2\"\n[set]\n\"stages.one.steps\" = 40\n"
      "[[axis]]\nkey = \"stages.one.learning_rate.warmup_steps\"\nvalues = [0.5, 1.0, 2]\n"
      "[[axis]]\nkey = \"optimizer.weight_decay\"\nvalues = [2.0]\n");
  std::vector<std::string> names;
  std::vector<std::int64_t> steps;
  for (const StudyArm& arm : study.arms) {
    names.push_back(arm.name);
    std::vector<Assignment> all = study.assignments;
    all.insert(all.end(), arm.assignments.begin(), arm.assignments.end());
    steps.push_back(load_run_config(study.base, all).stages[0].learning_rate.warmup_steps);
  }
  CHECK(steps == std::vector<std::int64_t>{20, 40, 2});
  CHECK(names[0] == "warmup_steps0.5-weight_decay2");
}

TEST_CASE("assignments beside a study come after its own and are part of what it is") {
  const StudyFolder folder;
  const std::string text =
      "base = \"base.toml\"\n[set]\nseed = 4\n[[arm]]\nname = \"bf16\"\nset.recipe = \"bf16\"\n";
  const StudyConfig plain = folder.load(text);
  const StudyConfig other = folder.load(text, {{"seed", "5"}});
  CHECK(load_run_config(other.base, other.assignments).seed == 5);
  CHECK(other.hash != plain.hash);
  CHECK(other.text == plain.text + "\n# --set \"seed=5\"");
  CHECK_THROWS_AS(folder.load(text, {{"sead", "5"}}), Error);
}

TEST_CASE("a study has a scale, in its file or beside it, for all its runs") {
  const StudyFolder folder;
  const std::string rest =
      "base = \"base.toml\"\nshared_stages = [\"one\"]\n"
      "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"infir2\"]\n";
  const StudyConfig plain = folder.load(rest);
  const StudyConfig tenth = folder.load("scale = 0.1\n" + rest);
  const StudyConfig twice = folder.load("scale = 0.1\n" + rest, {}, 2.0);
  const auto steps = [](const StudyConfig& study) {
    const SharedRun& shared = study.shared_runs.front();
    const RunConfig config = configure(study, "run 'shared'", shared.assignments);
    const RunConfig arm = configure(study, "arm 'infir2'", study.arms[1].assignments);
    CHECK(arm.stages == config.stages);
    return config.stages[0].steps;
  };
  CHECK(steps(plain) == 30);
  CHECK(steps(tenth) == 3);
  CHECK(steps(twice) == 60);
  CHECK(twice.hash != tenth.hash);
  CHECK(twice.text == "scale = 0.1\n" + rest + "\n# --scale 2");
  for (const std::string bad : {"0", "-0.5", "1001", "\"half\"", "nan"}) {
    INFO(bad);
    check_fields(
        fields_thrown_by([&] { folder.load("scale = " + bad + "\n" + rest); }),
        {.where = "s.toml:1:1", .key = "scale", .accepted = "a number above 0, at most 1000"});
  }
}

TEST_CASE("names that no file can have are names of missing files") {
  const StudyFolder folder;
  const std::string name(400, 'b');
  const std::string arm = "\n[[arm]]\nname = \"bf16\"\nset.recipe = \"bf16\"\n";
  CHECK_THROWS_AS(folder.load("base = \"" + name + ".toml\"" + arm), Error);
  CHECK_THROWS_AS(load_recipe(name + ".toml"), Error);
  CHECK_THROWS_AS(load_recipe(name), Error);
}

TEST_CASE("the studies that come with the program are valid") {
  for (const std::string& name : experiment_names("studies")) {
    INFO(name);
    const StudyConfig study = load_study_config(find_experiment("studies", name, ""));
    CHECK(study.name == name);
    CHECK_FALSE(study.arms.empty());
  }
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

TEST_CASE("bad studies are refused") {
  const StudyFolder folder;
  struct Row {
    std::string text;
    ErrorFields expected;
  };
  const std::string base = "base = \"base.toml\"\n";
  const std::string axis = "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\"]\n";
  const Row rows[] = {
      {axis, {.key = "base", .reason = "is missing"}},
      {"base = \"none.toml\"\n" + axis, {.where = "s.toml:1:1", .reason = "does not exist"}},
      {base, {.key = "axis", .reason = "is missing", .accepted = "[[arm]]"}},
      {base + "arms = 1\n" + axis,
       {.where = "s.toml:2:1",
        .noun = "unknown key",
        .key = "arms",
        .accepted = "name, title, base"}},
      {base + "[[axis]]\nkey = \"recipe\"\nvalues = []\n",
       {.key = "axis.values", .accepted = "at least one"}},
      {base + "[[axis]]\nvalues = [1]\n", {.key = "axis.key", .reason = "is missing"}},
      {base + "[[axis]]\nkey = \"recipe\"\nvalue = [1]\n",
       {.key = "axis.value", .accepted = "key, values"}},
      {base + axis + "[[arm]]\nname = \"bf16\"\n", {.reason = "'bf16' is not unique"}},
      {base + axis + "[[axis]]\nkey = \"seed\"\nvalues = [1]\n" + axis,
       {.where = "s.toml:9:1", .key = "axis.key", .reason = "two axes vary 'recipe'"}},
      {base + axis + "[[arm]]\nname = \"../x\"\n",
       {.found = "'../x'", .accepted = "letters, digits"}},
      {base + axis + "[[arm]]\nname = \"shared\"\n", {.reason = "'shared' is kept for"}},
      {base + axis + "[[arm]]\nname = \"report\"\n",
       {.where = "s.toml:6:1", .reason = "'report' is kept for"}},
      {base + axis + "[[arm]]\nname = \"study.h5\"\n", {.reason = "'study.h5' is kept for"}},
      {base + axis + "[[arm]]\nname = \"" + std::string(101, 'x') + "\"\n",
       {.accepted = "1 to 100 letters"}},
      {base + "[[axis]]\nkey = \"recipe\"\nvalues = [\"bf16\", \"shared\"]\n",
       {.reason = "kept for"}},
      {base + "[[axis]]\nkey = \"name\"\nvalues = [\"..\"]\n",
       {.reason = "'..'", .accepted = "[[arm]] tables"}},
      {base + "[[axis]]\nkey = \"name\"\nvalues = [\"" + std::string(300, 'x') + "\"]\n",
       {.accepted = "1 to 100 letters"}},
      {base + repeated(axis, 65),
       {.key = "axis", .found = "65", .reason = "axes", .accepted = "at most 64"}},
      {base + repeated("[[axis]]\nkey = \"seed\"\nvalues = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n", 5),
       {.key = "axis", .found = "100000", .reason = "arms", .accepted = "at most 10000"}},
      {base + repeated("[[axis]]\nkey = \"seed\"\nvalues = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n", 60),
       {.key = "axis", .found = "1e+60", .reason = "arms", .accepted = "at most 10000"}},
      {base + "[[axis]]\nkey = \"recipe\"\nvalues = [\"infir3\"]\n",
       {.where = "arm 'infir3'", .noun = "unknown recipe", .key = "infir3"}},
      {base + "[[axis]]\nkey = \"sead\"\nvalues = [1]\n",
       {.where = "arm 'sead1'", .noun = "unknown key", .key = "sead"}},
      {base + "baseline = \"fp32\"\n" + axis,
       {.key = "baseline", .reason = "no arm runs the recipe 'fp32'"}},
      {base + "[baseline]\nset = { seed = 7 }\n" + axis,
       {.key = "baseline", .reason = "no arm runs the recipe 'bf16' with its set"}},
      {base + "[baseline]\nset = { sead = 7 }\n" + axis,
       {.where = "with the set of baselines", .noun = "unknown key", .key = "sead"}},
      {base + "[baseline]\nset = { recipe = \"bf16\" }\n" + axis,
       {.key = "baseline.set", .accepted = "baseline.recipe"}},
      {base + "[baseline]\nrecipes = \"bf16\"\n" + axis, {.key = "baseline.recipes"}},
      {base + "baseline = 3\n" + axis, {.key = "baseline"}},
      {base + "shared_stages = [\"two\"]\n" + axis,
       {.key = "shared_stages", .found = "'two'", .accepted = "leading"}},
      {base + "shared_stages = [\"one\", \"two\"]\n" + axis, {.reason = "no stage for the arms"}},
      {base + "shared_stages = [\"one\"]\n[shared]\nset = { seed = \"x\" }\n" + axis,
       {.where = "run 'shared'", .accepted = "an integer"}},
      {base + "[shared]\naxes = [\"recipe\"]\n" + axis,
       {.key = "shared", .accepted = "beside shared_stages"}},
      {base + "shared_stages = [\"one\"]\n[shared]\naxes = [\"seed\"]\n" + axis,
       {.key = "shared.axes", .reason = "does not set 'seed'", .accepted = "every arm sets"}},
      {base + "[set]\nseed = 2020-01-01\n" + axis, {.key = "set", .accepted = "strings, numbers"}},
      {base + axis + "[[arm]]\nname = \"a\"\nshared = false\n",
       {.found = "'a'", .reason = "has shared = false", .accepted = "beside shared_stages"}},
      {base + axis + "[[arm]]\nname = \"a\"\nshared = 0\n",
       {.key = "arm.shared", .accepted = "true or false"}},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    check_fields(fields_thrown_by([&] { folder.load(row.text); }), row.expected);
  }
}

TEST_CASE("what an evaluation generates is part of the configuration where it is asked for") {
  const std::string plain =
      "[[stages]]\nname = \"a\"\nkind = \"sft\"\n[stages.eval]\nsequences = 2\n";
  const RunConfig without = parse_run_config(plain, "t.toml", {});
  CHECK(without.text.find("pass_at_k") == std::string::npos);
  const RunConfig with = parse_run_config(plain, "t.toml",
                                          {{"stages.a.eval.pass_at_k.samples", "6"},
                                           {"stages.a.eval.pass_at_k.k", "[1, 6]"},
                                           {"stages.a.eval.pass_at_k.temperature", "0.7"},
                                           {"stages.a.eval.rollout.recipe", "infir2"},
                                           {"stages.a.eval.rollout.top_k", "20"},
                                           {"stages.a.eval.multiple_choice", "q.jsonl"}});
  CHECK(with.hash != without.hash);
  const RunConfig again = parse_run_config(with.text, "stored", {});
  CHECK(again.text == with.text);
  REQUIRE(again.stages[0].eval == with.stages[0].eval);
  const EvalConfig& eval = *again.stages[0].eval;
  CHECK(eval.pass_at_k->k == std::vector<std::int64_t>{1, 6});
  CHECK(eval.pass_at_k->sampling.temperature == 0.7);
  CHECK(eval.rollout->recipe == "infir2");
  CHECK(eval.rollout->sampling.top_k == 20);
  CHECK(eval.rollout->sampling.temperature == 1.0);
  CHECK(eval.multiple_choice == "q.jsonl");
}

}  // namespace
}  // namespace fp8lab
