// The error of a gradient split by source: planted ones are named.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "src/diagnosis/attribution.hpp"
#include "src/diagnosis/diagnosis_time.hpp"
#include "src/error_sources/switches.hpp"
#include "tests/device_memory.hpp"
#include "tests/src/diagnosis/diagnosed_run.hpp"

using namespace fp8lab;
using fp8lab::test::DiagnosedRun;

namespace {

const std::string kHealthy =
    "name = \"healthy\"\n[gemm]\naccumulator = \"sm90_wgmma_fp8\"\nschedule = \"promote:32\"\n"
    "[gemm.wgrad]\noutput = \"fp32\"\n[slots.default]\nformat = \"e4m3fn\"\ntile = \"1x32\"\n";

const std::vector<Assignment> kShort = {{"stages.s.sequence_length", "64"},
                                        {"stages.s.data.form", "running_text"},
                                        {"stages.s.eval.data.form", "running_text"},
                                        {"stages.s.data.problems", "200"}};

const std::vector<std::string> kGroups = {"source", "scale", "slot", "GEMM", "layer"};

Attribution attributed(DiagnosedRun& run, const CheckpointedRun& at, const Recipe& recipe) {
  return attribute_gradients(run.backend(), at, run.next_step(), {recipe}, {kGroups, {}}, 2,
                             [](const std::string&, std::size_t, std::size_t) {})
      .front();
}

/// At the checkpoint of a run in bf16.
Attribution attributed(const Recipe& recipe) {
  DiagnosedRun run("bf16", kShort);
  return attributed(run, run.at_checkpoint(), recipe);
}

Attribution attributed(const std::string& text) {
  return attributed(parse_recipe(text, "planted.toml"));
}

const PartGroup& group(const Attribution& attribution, const std::string& name) {
  for (const PartGroup& found : attribution.groups) {
    if (found.name == name) return found;
  }
  FAIL(name);
  throw Error(name);
}

const Part& part(const Attribution& attribution, const std::string& of, const std::string& name) {
  for (const Part& found : group(attribution, of).parts) {
    if (found.name == name) return found;
  }
  FAIL(name);
  throw Error(name);
}

/// The part whose absence takes away most.
std::string largest(const Attribution& attribution, const std::string& of) {
  const std::vector<Part>& parts = group(attribution, of).parts;
  return std::min_element(parts.begin(), parts.end(),
                          [](const Part& a, const Part& b) { return a.without < b.without; })
      ->name;
}

/// The part that makes the largest error by itself.
std::string largest_alone(const Attribution& attribution, const std::string& of) {
  const std::vector<Part>& parts = group(attribution, of).parts;
  return std::max_element(parts.begin(), parts.end(),
                          [](const Part& a, const Part& b) { return *a.alone < *b.alone; })
      ->name;
}

double share(const Attribution& attribution, const std::string& of, const std::string& name) {
  return attribution.share_without(part(attribution, of, name));
}

void check_named(const Attribution& attribution, const std::string& of, const std::string& name) {
  CHECK(largest(attribution, of) == name);
  CHECK(largest_alone(attribution, of) == name);
  CHECK(share(attribution, of, name) > 0.5);
  CHECK(*attribution.share_alone(part(attribution, of, name)) > 0.5);
}

}  // namespace

TEST_CASE("an estimator is said to be no error of arithmetic") {
  DiagnosedRun run("bf16", kShort);
  const CheckpointedRun at = run.at_checkpoint();
  const auto remarks_of = [&](const char* recipe) {
    return attribute_gradients(run.backend(), at, run.next_step(), {load_recipe(recipe)},
                               {{"scale"}, {}}, 2,
                               [](const std::string&, std::size_t, std::size_t) {})
        .front()
        .remarks;
  };
  CHECK(remarks_of("fp4_direct").empty());
  const std::vector<std::string> remarks = remarks_of("fp4_dge");
  REQUIRE(remarks.size() == 1);
  CHECK(remarks[0].find("by the estimator dge:5:3 of fprop.w") != std::string::npos);
}

TEST_CASE("only what is named is attributed, layers when asked for, and the unknown refused") {
  DiagnosedRun run("bf16", kShort);
  const CheckpointedRun at = run.at_checkpoint();
  const Recipe recipe = parse_recipe(kHealthy, "planted.toml");
  std::vector<std::string> told;
  std::size_t said = 0;
  const auto of = [&](const std::vector<std::string>& groups,
                      const std::vector<std::string>& layers) {
    told.clear();
    return attribute_gradients(run.backend(), at, run.next_step(), {recipe}, {groups, layers}, 2,
                               [&](const std::string& part, std::size_t done, std::size_t total) {
                                 CHECK(done == told.size());
                                 told.push_back(part);
                                 said = total;
                               })
        .front();
  };
  const auto names = [](const Attribution& attribution) {
    std::vector<std::string> found;
    for (const PartGroup& group : attribution.groups) found.push_back(group.name);
    return found;
  };
  const Attribution some = of({"GEMM", "scale"}, {});
  CHECK(names(some) == std::vector<std::string>{"scale", "GEMM"});
  // Scales are FP32 and have no history: their gradients are the one under the recipe.
  CHECK(told.size() == 9);
  CHECK(said == 9);
  CHECK(part(some, "scale", "scale rounding").without == some.whole);
  const Attribution usual = of({}, {});
  CHECK(names(usual) == std::vector<std::string>{"source", "scale", "slot", "GEMM"});
  CHECK(usual.whole == some.whole);
  CHECK(part(usual, "GEMM", "wgrad").without == part(some, "GEMM", "wgrad").without);
  CHECK(told.size() == 1 + 2 + 2 * (5 + 6 + 3));  // it has no estimator
  CHECK(part(usual, "source", "estimator").without == usual.whole);
  CHECK(*part(usual, "source", "estimator").alone == usual.nothing);
  const Attribution layers = of({"layer"}, {}), one = of({}, {"layers.1.mlp.*"});
  CHECK(names(layers) == std::vector<std::string>{"layer"});
  CHECK(group(layers, "layer").parts.size() == 9);
  CHECK(names(one) == std::vector<std::string>{"layer"});
  REQUIRE(group(one, "layer").parts.size() == 2);
  for (const Part& found : group(one, "layer").parts) {
    CHECK(found.without == part(layers, "layer", found.name).without);
    CHECK(found.alone == part(layers, "layer", found.name).alone);
  }
  CHECK(names(of({"scale"}, {"lm_head"})) == std::vector<std::string>{"scale", "layer"});
  CHECK_THROWS_WITH(of({"gemm"}, {}), "group 'gemm': accepted: source, scale, slot, GEMM, layer");
  CHECK_THROWS_WITH(of({}, {"layers.7.*"}), Catch::Contains("layer 'layers.7.*'"));
}

TEST_CASE("the time of a gradient is that of its GEMMs, by what their operands keep") {
  std::vector<LinearDeclaration> linears(2);
  linears[0].name = "a", linears[0].in = 30, linears[0].out = 10;
  linears[1].name = "b", linears[1].in = linears[1].out = 10;
  const PassTime emulated{8, 1}, exact{4, 5};
  const auto seconds = [&](const Switches& switches) {
    return gradient_seconds(switches, linears, emulated, exact);
  };
  Switches switches = all_switches(2, true);
  CHECK(seconds(switches) == Approx(8 + 1));
  CHECK(seconds(all_switches(2, false)) == Approx(4 + 5));
  for (Switches::Layer& layer : switches.layers) layer.operands.fill({false, true, true});
  CHECK(seconds(switches) == Approx(8 + 2 * 4 + 5));
  switches = all_switches(2, true);
  switches.layers[0].operands[Slot::dgrad_w] = {true, false, true};  // a quarter of all GEMMs
  CHECK(seconds(switches) == Approx(8 + 0.25 * 2 * 4 + 1 + 0.25 * 4));
  switches.layers[1].accumulators[GemmRole::fprop] = false;  // a twelfth
  CHECK(seconds(switches) == Approx(8 + 0.25 * 2 * 4 - 4.0 / 12 + 1 + 0.25 * 4));
}

TEST_CASE("without its sources a gradient is exact, and casts are what a healthy recipe has") {
  const Attribution attribution = attributed(kHealthy);
  CHECK(attribution.nothing < 1e-6);  // FP32 norms, attention and losses
  CHECK(attribution.whole > 0.01);
  CHECK(attribution.whole < 0.1);
  check_named(attribution, "source", "element cast");
  // Independent roundings add in squares.
  for (const char* name : {"source", "slot", "GEMM", "layer"}) {
    INFO(name);
    double alone = 0;
    for (const Part& one : group(attribution, name).parts) alone += *attribution.share_alone(one);
    CHECK(alone == Approx(1.0).margin(0.25));
  }
  CHECK(part(attribution, "scale", "amax history").without == attribution.whole);
  CHECK(part(attribution, "scale", "scale rounding").without == attribution.whole);
  CHECK(attribution.remarks.empty());
}

TEST_CASE("without its sources the gradient of adapters is exact") {
  std::vector<Assignment> settings = kShort;
  settings.push_back({"model.lora_rank", "4"});
  DiagnosedRun run("bf16", settings);
  const Attribution attribution =
      attributed(run, run.at_checkpoint(), parse_recipe(kHealthy, "planted.toml"));
  CHECK(attribution.nothing < 1e-6);
  CHECK(attribution.whole > 0.005);
  check_named(attribution, "source", "element cast");
  // The products of adapters are in bf16: without casts, their storage remains.
  CHECK(part(attribution, "layer", "layers.0.attention.q.lora_a").alone > 0);
}

TEST_CASE("a recipe without errors has none") {
  const Attribution attribution = attributed(load_recipe("fp32"));
  CHECK(attribution.whole < 1e-5);
  const Attribution bf16 = attributed(load_recipe("bf16"));
  check_named(bf16, "source", "storage");
  CHECK(part(bf16, "source", "storage").without < 1e-3 * bf16.whole);
}

TEST_CASE("nothing is left of rotations, clamps, and codes that are quantized again") {
  const char* name = GENERATE("deepseek_v3", "halo2_fp8", "fp4_occ", "nvfp4", "quartet");
  INFO(name);
  const Attribution attribution = attributed(load_recipe(name));
  CHECK(attribution.nothing < 1e-6);
  CHECK(largest(attribution, "source") == "element cast");
  CHECK(attribution.whole > 0.01);
}

TEST_CASE("nothing is left of a rotated operand that is quantized again") {
  const Attribution rotated = attributed(
      kHealthy +
      "[slots.fprop.x]\ntransform = \"hadamard:32\"\n[slots.fprop.w]\n"
      "transform = \"hadamard:32\"\n[slots.wgrad.x]\norientation_source = \"requantized\"\n");
  CHECK(rotated.nothing < 1e-6);
}

TEST_CASE("a wrong accumulator is named") {
  // Which no fast chain has, so in a model of few GEMMs.
  std::vector<Assignment> small = kShort;
  small.push_back({"model.num_hidden_layers", "1"});
  small.push_back({"model.intermediate_size", "64"});
  DiagnosedRun run("bf16", small);
  Recipe recipe =
      parse_recipe(kHealthy + "[keep_high_precision]\nmodules = [\"lm_head\"]\n", "planted.toml");
  const std::vector<AccumulatorParameter> values = {{"fraction_bits", "3"}};
  for (GemmSpec& gemm : recipe.linear.gemms) gemm.accumulator = custom_accumulator(values);
  check_named(attributed(run, run.at_checkpoint(), recipe), "source", "accumulator");
}

TEST_CASE("an estimator is named, and is all that a recipe with it has more than one without") {
  DiagnosedRun run("bf16", kShort);
  const CheckpointedRun at = run.at_checkpoint();
  const auto planted = [&](const std::string& estimators) {
    return attributed(run, at, parse_recipe(kHealthy + estimators, "planted.toml"));
  };
  const Attribution plain = planted("");
  const Attribution of_w = planted("[slots.fprop.w]\nestimator = \"dge:5:3\"\n");
  CHECK(of_w.nothing == plain.nothing);
  CHECK(of_w.whole > 2 * plain.whole);
  check_named(of_w, "source", "estimator");
  check_named(of_w, "slot", "fprop.w");
  check_named(of_w, "GEMM", "fprop");
  CHECK(part(of_w, "source", "estimator").without == plain.whole);
  CHECK(part(plain, "source", "estimator").without == plain.whole);
  CHECK(*part(plain, "source", "estimator").alone == plain.nothing);
  // A slot has its own estimator and no other.
  const Attribution of_both = planted(
      "[slots.fprop.x]\nestimator = \"dge:4:2\"\n[slots.fprop.w]\nestimator = \"dge:5:3\"\n");
  CHECK(*part(of_both, "slot", "fprop.w").alone == *part(of_w, "slot", "fprop.w").alone);
  CHECK(*part(of_both, "slot", "fprop.x").alone > 2 * *part(of_w, "slot", "fprop.x").alone);
  for (const char* name : {"dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x"}) {
    INFO(name);
    CHECK(*part(of_both, "slot", name).alone == *part(plain, "slot", name).alone);
  }
  CHECK(part(of_both, "GEMM", "fprop").without == part(plain, "GEMM", "fprop").without);
  CHECK(part(of_both, "source", "estimator").without == plain.whole);
}

TEST_CASE("a coarse tile of one layer is named") {
  const Attribution attribution =
      attributed(kHealthy +
                 "[[override]]\nmatch = \"layers.0.mlp.down\"\nslots.default.format = \"int4\"\n"
                 "slots.default.tile = \"tensor\"\n");
  check_named(attribution, "layer", "layers.0.mlp.down");
}

TEST_CASE("an overflow is named") {
  const Attribution attribution =
      attributed(kHealthy +
                 "[slots.x]\ntile = \"tensor\"\nscale_source = \"static\"\n"
                 "static_scale = 0.001953125\n");
  check_named(attribution, "source", "saturation");
  CHECK(largest(attribution, "slot") == "fprop.x");
}

TEST_CASE("flushed gradients are named") {
  const Attribution attribution =
      attributed(kHealthy +
                 "[slots.dy]\ntile = \"tensor\"\nscale_source = \"static\"\n"
                 "static_scale = 4.0\n");
  check_named(attribution, "source", "underflow");
  CHECK(largest(attribution, "slot") == "dgrad.dy");
}

TEST_CASE("a bad rounding of scales is named") {
  // The nearest power of two may be too small by a factor of sqrt 2: in int8 that is the error.
  const std::string int8 =
      "name = \"int8\"\n[gemm]\naccumulator = \"ideal_exact\"\nschedule = \"promote:32\"\n"
      "[gemm.wgrad]\noutput = \"fp32\"\n[slots.default]\nformat = \"int8\"\ntile = \"1x32\"\n";
  const Attribution good = attributed(int8);
  const Attribution bad =
      attributed(int8 + "scale_format = \"pow2\"\nscale_rounding = \"nearest\"\n");
  CHECK(bad.whole > 2 * good.whole);
  CHECK(largest(bad, "scale") == "scale rounding");
  CHECK(share(bad, "scale", "scale rounding") > 0.5);
  CHECK(part(bad, "scale", "scale rounding").without == Approx(good.whole).epsilon(1e-6));
  CHECK(largest(bad, "source") == "saturation");
  CHECK_FALSE(part(bad, "scale", "scale rounding").alone);
}

TEST_CASE("the lag of an amax history is named") {
  DiagnosedRun run("te_delayed", kShort);
  CheckpointedRun at = run.at_checkpoint();
  REQUIRE(at.histories.size() == 24);
  const Attribution present = attributed(run, at, at.recipe);
  CHECK(share(present, "scale", "amax history") < 0.5);
  for (auto& [name, history] : at.histories) {
    history.state[DelayedState::kScale] *= 0x1p14f;  // of a time with far larger values
    history.state[DelayedState::kMultiplier] *= 0x1p-14f;
  }
  const Attribution late = attributed(run, at, at.recipe);
  CHECK(late.whole > 2 * present.whole);
  CHECK(largest(late, "scale") == "amax history");
  CHECK(share(late, "scale", "amax history") > 0.5);
  CHECK(part(late, "scale", "amax history").without ==
        part(present, "scale", "amax history").without);
}

TEST_CASE("a device has the attribution of the CPU, to the bit") {
  const char* name = GENERATE("te_delayed", "nvfp4", "fp4_occ", "fp4_dge");
  INFO(name);
  DiagnosedRun run("bf16", kShort);
  const CheckpointedRun at = run.at_checkpoint();
  test::DeviceMemory device(run.backend());
  const auto of = [&](Backend& backend) {
    return attribute_gradients(backend, at, run.next_step(), {load_recipe(name)},
                               {{"source", "scale"}, {}}, 2,
                               [](const std::string&, std::size_t, std::size_t) {})
        .front();
  };
  const Attribution here = of(run.backend()), there = of(device);
  CHECK(there.whole == here.whole);
  CHECK(there.nothing == here.nothing);
  for (const char* group_name : {"source", "scale"}) {
    for (const Part& one : group(here, group_name).parts) {
      INFO(one.name);
      CHECK(part(there, group_name, one.name).alone == one.alone);
      CHECK(part(there, group_name, one.name).without == one.without);
    }
  }
}

TEST_CASE("a history that the checkpoint lacks, and what runs elsewhere") {
  DiagnosedRun run("bf16", kShort);
  const Attribution attribution = attributed(run, run.at_checkpoint(), load_recipe("te_delayed"));
  REQUIRE(attribution.remarks.size() == 1);
  CHECK_THAT(attribution.remarks[0], Catch::Contains("24 tensors have no amax history") &&
                                         Catch::Contains("layers.0.attention.qkv/x"));
  Recipe odd = load_recipe("infir2");
  for (QuantSpec& spec : odd.linear.slots) spec.transform = *transform_from_name("hadamard:48");
  CHECK_THROWS_WITH(attributed(run, run.at_checkpoint(), odd), Catch::Contains("recipe infir2"));
}

TEST_CASE("an instruction that takes no FP32 scales goes with their rounding, and that is said") {
  const Attribution attribution = attributed(
      "name = \"mx\"\n[gemm]\naccumulator = \"sm100_mxf8f6f4\"\n[gemm.wgrad]\noutput = \"fp32\"\n"
      "[slots.default]\nformat = \"e4m3fn\"\ntile = \"1x32\"\nscale_format = \"e8m0\"\n"
      "scale_rounding = \"rceil\"\n");
  REQUIRE(attribution.remarks.size() == 1);
  CHECK_THAT(attribution.remarks[0], Catch::Contains("27 GEMMs have exact sums"));
  CHECK(largest(attribution, "source") == "element cast");
}

TEST_CASE("switched off, a source is a field of the recipe") {
  Recipe recipe = load_recipe("infir2");
  const numerics::Estimator mask{numerics::EstimatorKind::clip_mask};
  for (const Slot slot : {Slot::fprop_x, Slot::fprop_w}) recipe.linear.slot(slot).estimator = mask;
  const ModelConfig model;
  Switches switches;
  switches.layers.resize(declaration_of(model).linears().size());
  switches.scale_rounding = switches.storage = false;
  switches.layers[1].accumulators[GemmRole::dgrad] = false;
  switches.layers[1].estimators[Slot::fprop_w] = false;
  int replaced = 0;
  const Recipe result = with_switches(recipe, model, switches, replaced);
  CHECK(replaced == 0);
  CHECK(result.activation_dtype == DType::f32);
  const LinearRecipe& qkv = result.for_layer("layers.0.attention.qkv", 2);
  const LinearRecipe& o = result.for_layer("layers.0.attention.o", 2);
  for (const Slot slot : kSlots) {
    CHECK(qkv.slot(slot).scale.format == numerics::ScaleFormat::fp32);
    CHECK(qkv.slot(slot).tile == recipe.linear.slot(slot).tile);
  }
  CHECK(qkv.gemm(GemmRole::dgrad).accumulator == Accumulator::sm90_wgmma_fp8);
  CHECK(qkv.slot(Slot::fprop_x).estimator == mask);
  CHECK(qkv.slot(Slot::fprop_w).estimator == mask);
  CHECK(o.slot(Slot::fprop_x).estimator == mask);
  CHECK(!o.slot(Slot::fprop_w).estimator);
  CHECK(o.gemm(GemmRole::dgrad).accumulator == Accumulator::ideal_exact);
  CHECK(o.gemm(GemmRole::dgrad).promote_interval == 128);
  CHECK(o.gemm(GemmRole::fprop).accumulator == Accumulator::sm90_wgmma_fp8);
  CHECK(o.gemm(GemmRole::fprop).output == DType::f32);
  CHECK(result.for_layer("lm_head", 2).slot(Slot::fprop_x).format == numerics::kBF16);
}
