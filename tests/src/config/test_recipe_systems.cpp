// What defines each published system's recipe, and that it would be noticed if it were not so.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "emulation/spec/estimator.hpp"
#include "emulation/spec/recipe.hpp"
#include "emulation/spec/recipe_names.hpp"
#include "src/config/config.hpp"
#include "src/io/files/atomic_file.hpp"
#include "src/io/files/file_kind.hpp"
#include "tests/scratch_directory.hpp"

namespace fp8lab {
namespace {

/// The label of the place that `where` names, of a layer or of all that are no exception: an
/// operand
/// ("wgrad.x"), with what it is made from where that is no unquantized tensor, or a GEMM ("wgrad").
std::string label_at(const Recipe& recipe, const std::string& where, const std::string& layer) {
  const LinearRecipe& linear = layer.empty() ? recipe.linear : recipe.for_layer(layer, 2);
  for (const Slot slot : kSlots) {
    if (slot_name(slot) != where) continue;
    const QuantSpec& spec = linear.slot(slot);
    const bool original = spec.orientation_source == OrientationSource::high_precision;
    const auto source = word_for(kOrientationSourceNames, spec.orientation_source);
    const bool of_master = spec.weight_source == WeightSource::master;
    return label(spec) + (original ? "" : ", " + std::string(source)) +
           (of_master ? ", master" : "");
  }
  for (const GemmRole role : kGemmRoles) {
    if (gemm_role_name(role) == where) return label(linear.gemm(role));
  }
  const std::string saved = "saved ";  // "saved mlp.inner"
  if (where.starts_with(saved)) {
    const SavedActivation* const row = recipe.saved_activation(where.substr(saved.size()));
    if (row == nullptr) return "as it is";
    return row->is_recomputed ? "recompute" : label(row->spec);
  }
  for (const AttentionSlot slot : kAttentionSlots) {
    if (where != "attention " + std::string(name_of(slot))) continue;
    return recipe.attention.has(slot) ? label(*recipe.attention.slots[slot]) : "as it is";
  }
  throw Error("no operand or GEMM is called " + where);
}

/// A recipe like `base`, with the keys of `keys` in the place of its own.
Recipe changed(const std::string& base, const std::string& keys) {
  return parse_recipe("base = \"" + base + "\"\nname = \"changed\"\n" + keys, "changed.toml");
}

struct Feature {
  const char* recipe;
  const char* where;
  const char* expected;
  const char* change;  ///< keys that take the feature away
  const char* layer = "";
};

/// An exception that no layer of interest meets.
constexpr const char* kNoExceptions = "[[override]]\nmatch = \"lm_head\"\n";

// Sources: the recipes' own comments and `source` keys.
const Feature kFeatures[] = {
    {"infir2", "wgrad.x", "e4m3fn/1x128/pow2/enc_floor", "[slots.x]\ntile = \"128x128\"\n"},
    {"infir2", "dgrad.w", "e4m3fn/128x128/pow2/enc_floor", "[slots.w]\ntile = \"1x128\"\n"},
    {"infir2_fp32scale", "fprop.x", "e4m3fn/1x128/fp32/encode_limit:bf16",
     "[slots.default]\nencode_limit = \"fp32\"\n"},
    {"deepseek_v3", "fprop.x", "e4m3fn/1x128/fp32/dec_div_recip",
     "[slots.default]\namax_epsilon = 1e-4\n"},
    {"deepseek_v3_floor", "wgrad.dy", "e4m3fn/1x128/fp32/dec_div_recip/amax_epsilon:0.0001",
     "[slots.default]\namax_epsilon = 0.0\n"},
    {"deepseek_v3_dy_block", "dgrad.dy", "e4m3fn/128x128/fp32/dec_div_recip",
     "[slots.dy]\ntile = \"1x128\"\n"},
    {"jet_rl", "fprop.x", "e4m3fn/1x128/fp32/encode_limit:bf16", "[slots.x]\ntile = \"row\"\n"},
    {"te_current", "wgrad.dy", "e5m2/tensor/fp32", "[slots.dy]\nformat = \"e4m3fn\"\n"},
    {"te_current_fast", "wgrad", "sm90_wgmma_fp8/fast/f32", "[gemm]\nschedule = \"promote:128\"\n"},
    {"te_delayed", "fprop.x", "e4m3fn/tensor/fp32/delayed",
     "[slots.default]\namax_algorithm = \"most_recent\"\n"},
    {"fp8_lm", "fprop.x", "e4m3fn/tensor/pow2/enc_floor/delayed/history:16/warmup_steps:16",
     "[slots.default]\nwarmup_steps = 0\n"},
    {"fp8_lm", "dgrad.w", "e4m3fn/tensor/pow2/enc_floor",
     "[slots.w]\nscale_source = \"delayed\"\n"},
    {"fp8_lm_o3", "fprop.w", "e4m3fn/tensor/pow2/enc_floor, master",
     "[slots.w]\nweight_source = \"bf16\"\n"},
    {"intel_delayed", "wgrad.x",
     "e5m2/tensor/pow2/enc_floor/delayed/history:1/amax_algorithm:window",
     "[slots.wgrad.x]\nformat = \"e4m3_240\"\n"},
    {"intel_delayed", "dgrad.dy",
     "e5m2/tensor/pow2/enc_floor/delayed/history:1/amax_algorithm:window/stochastic",
     "[slots.dgrad.dy]\nrounding = \"nearest\"\n"},
    {"smooth_swiglu", "fprop.x",
     "e4m3_240/tensor/pow2/enc_floor/delayed/history:1/amax_algorithm:window/smooth:1",
     kNoExceptions, "layers.0.mlp.down"},
    {"smooth_swiglu", "fprop.w", "e4m3_240/tensor/pow2/enc_floor/smooth:1", kNoExceptions,
     "layers.1.mlp.down"},
    {"smooth_swiglu", "wgrad.x",
     "e5m2/tensor/pow2/enc_floor/delayed/history:1/amax_algorithm:window, transformed",
     kNoExceptions, "layers.0.mlp.down"},
    {"intel_delayed_down_bf16", "fprop.x", "bf16", kNoExceptions, "layers.0.mlp.down"},
    {"intel_delayed_down_bf16", "wgrad.x", "bf16", kNoExceptions, "layers.0.mlp.down"},
    {"mxfp8", "fprop.w", "e4m3fn/1x32/e8m0/rceil", "[slots.default]\nscale_rounding = \"even\"\n"},
    {"mxfp8_floor", "fprop.w", "e4m3fn/1x32/e8m0/ocp_floor",
     "[slots.default]\nscale_rounding = \"rceil\"\n"},
    {"mxfp8_bf16_forward", "fprop.w", "bf16",
     "[slots.fprop]\nx.format = \"e4m3fn\"\nw.format = \"e4m3fn\"\n"
     "[gemm.fprop]\nschedule = \"promote:32\"\n"},
    {"mxfp8_bf16_forward", "wgrad.x", "e4m3fn/1x32/e8m0/rceil",
     "[slots.wgrad.x]\nscale_rounding = \"even\"\n"},
    {"mxfp8_bf16_backward", "wgrad.x", "bf16",
     "[slots.wgrad.x]\norientation_source = \"dequantized\"\n"},
    {"mxfp8_dequantized_backward", "wgrad.x", "bf16, dequantized",
     "[slots.wgrad.x]\norientation_source = \"high_precision\"\n"},
    {"mxfp8_dequantized_backward", "dgrad.w", "bf16, dequantized",
     "[slots.dgrad.w]\norientation_source = \"high_precision\"\n"},
    {"mxfp8_nvfp4_backward", "dgrad.w", "e2m1/1x16/nv_two_level, requantized",
     "[slots.dgrad.w]\norientation_source = \"high_precision\"\n"},
    {"mxfp8_nvfp4_backward", "wgrad.dy",
     "e2m1/1x16/nv_two_level/stochastic/hadamard:16:+++-+------+-+--",
     "[slots.wgrad.dy]\nrounding = \"nearest\"\n"},
    {"nvfp4_row_dequantized_backward", "fprop.x", "e2m1/1x16/nv_two_level/outer_scale:row",
     "[slots.fprop.x]\nouter_scale = \"tensor\"\n"},
    {"nvfp4_row_dequantized_backward", "wgrad.x", "bf16, dequantized",
     "[slots.wgrad.x]\norientation_source = \"high_precision\"\n"},
    {"nvfp4_row_four_over_six", "fprop.x", "e2m1/1x16/nv_two_level/mae/outer_scale:row",
     "[slots.fprop.x]\nfour_over_six = \"none\"\n"},
    {"nvfp4_row_mxfp8_backward", "wgrad.x", "e4m3fn/1x32/e8m0/rceil, requantized",
     "[slots.wgrad.x]\norientation_source = \"high_precision\"\n"},
    {"nvfp4_row_mxfp8_backward", "fprop.x", "e2m1/1x16/nv_two_level/outer_scale:row",
     "[slots.fprop.x]\nouter_scale = \"tensor\"\n"},
    {"te_current_via_fp16", "fprop.x", "e4m3fn/tensor/fp32/via:fp16",
     "[slots.default]\nvia = \"fp32\"\n"},
    {"te_current_via_bf16", "wgrad.dy", "e5m2/tensor/fp32/via:bf16",
     "[slots.default]\nvia = \"fp16\"\n"},
    {"torchao_tensorwise", "fprop.x", "e4m3fn/tensor/fp32/amax_epsilon:1e-12",
     "[slots.default]\namax_epsilon = 0.0\n"},
    {"torchao_tensorwise", "fprop", "sm90_wgmma_fp8/fast/bf16",
     "[gemm.fprop]\nschedule = \"promote:128\"\n"},
    {"torchao_rowwise", "wgrad.x", "e4m3fn/row/pow2/enc_floor/amax_epsilon:1e-12",
     "[slots.x]\ntile = \"tensor\"\n"},
    {"torchao_rowwise", "wgrad", "sm90_wgmma_fp8/promote:128/bf16",
     "[gemm.wgrad]\noutput = \"fp32\"\n"},
    {"torchao_rowwise_gw_hp", "wgrad.dy", "bf16", "[slots.wgrad.dy]\nformat = \"e4m3fn\"\n"},
    {"torchao_rowwise_gw_hp", "dgrad.w", "e4m3fn/tensor/pow2/enc_floor/amax_epsilon:1e-12",
     "[slots.dgrad.w]\ntile = \"row\"\n"},
    {"nvfp4", "wgrad.dy", "e2m1/1x16/nv_two_level/stochastic/hadamard:16:+++-+------+-+--",
     "[slots.dy]\nrounding = \"nearest\"\n"},
    {"nvfp4_nearest", "wgrad.dy", "e2m1/1x16/nv_two_level/hadamard:16:+++-+------+-+--",
     "[slots.dy]\nrounding = \"stochastic\"\n"},
    {"nvfp4_no_rht", "wgrad.x", "e2m1/1x16/nv_two_level",
     "[slots.wgrad.x]\ntransform = \"hadamard:16\"\n"
     "[slots.wgrad.dy]\ntransform = \"hadamard:16\"\n"},
    {"nvfp4_1d", "dgrad.w", "e2m1/1x16/nv_two_level", "[slots.w]\ntile = \"16x16\"\n"},
    {"nvfp4_1d_requantized", "dgrad.w", "e2m1/1x16/nv_two_level, requantized",
     "[slots.dgrad.w]\norientation_source = \"high_precision\"\n"},
    {"nvfp4_four_over_six", "wgrad.x", "e2m1/1x16/nv_two_level/mae",
     "[slots.x]\nfour_over_six = \"mse\"\n"},
    {"nvfp4_four_over_six", "fprop.w", "e2m1/16x16/nv_two_level/mae",
     "[slots.w]\nfour_over_six = \"none\"\n"},
    {"nvfp4_cvt_rs", "dgrad.dy", "e2m1/1x16/nv_two_level/stochastic:8",
     "[slots.dy]\nrounding = \"stochastic\"\n"},
    {"nvfp4_bf16_forward", "fprop.x", "bf16",
     "[slots.fprop]\nx.format = \"e2m1\"\nw.format = \"e2m1\"\n"
     "[gemm.fprop]\nschedule = \"promote:16\"\n"},
    {"nvfp4_bf16_forward", "dgrad.dy", "e2m1/1x16/nv_two_level/stochastic",
     "[slots.dgrad.dy]\nformat = \"bf16\"\n"},
    {"mxfp4", "dgrad.dy", "e2m1/1x32/e8m0/ocp_floor/stochastic",
     "[slots.default]\nscale_rounding = \"rceil\"\n"},
    {"fp4_occ", "fprop.x", "e2m1/row/fp32/clamp:0.99:compensated",
     "[slots.fprop.x]\ntransform = \"clamp:0.99\"\n"},
    {"fp4_direct", "fprop.x", "e2m1/row/fp32",
     "[slots.fprop.x]\ntransform = \"clamp:0.99:compensated\"\n"},
    {"fp4_dge", "fprop.x", "e2m1/row/fp32", "[slots.fprop.x]\ntransform = \"clamp:0.99\"\n"},
    {"fp4_dge_occ", "fprop.x", "e2m1/row/fp32/clamp:0.99:compensated:quantized",
     "[slots.fprop.x]\ntransform = \"clamp:0.99:compensated\"\n"},
    {"quartet", "fprop.x",
     "e2m1/1x32/e8m0/scale_rounding:nearest/amax_epsilon:6e-08/epsilon_mode:add/std:2.9224787/"
     "ties_down/hadamard:32",
     "[slots.fprop.x]\nscale_rounding = \"floor\"\n"},
    {"quartet", "wgrad.x",
     "e2m1/1x32/pow2/ocp_floor/scale_factor:1.3333334/stochastic/hadamard:32:drawn, transformed",
     "[slots.default]\nscale_factor = 1.0\n"},
    {"quartet_nearest", "dgrad.w",
     "e2m1/1x32/pow2/ocp_floor/scale_factor:1.3333334/hadamard:32:drawn, transformed",
     "[slots.default]\nrounding = \"stochastic\"\n"},
    {"quartet_forward", "fprop.w",
     "e2m1/1x32/e8m0/scale_rounding:nearest/amax_epsilon:6e-08/epsilon_mode:add/std:2.9224787/"
     "ties_down/hadamard:32",
     "[slots.default]\nscale_statistic = \"amax\"\n"},
    {"quartet_no_hadamard", "dgrad.w",
     "e2m1/1x32/pow2/ocp_floor/scale_factor:1.3333334/stochastic, requantized",
     "[slots.dgrad]\ndy.transform = \"hadamard:32\"\nw.transform = \"hadamard:32\"\n"},
    {"halo0_fp8", "fprop.x", "e4m3fn/tensor/fp32/dec_div",
     "[slots.fprop]\nx.transform = \"hadamard:full\"\nw.transform = \"hadamard:full\"\n"},
    {"halo1_fp8", "dgrad.w", "e4m3fn/tensor/fp32/dec_div, transformed",
     "[slots.dgrad.w]\norientation_source = \"high_precision\"\n"},
    {"halo1_fp6", "wgrad.x", "e3m2/tensor/fp32/dec_div, transformed",
     "[slots.wgrad.x]\norientation_source = \"requantized\"\n"},
    {"halo1_alternative_fp8", "wgrad.x", "e4m3fn/tensor/fp32/dec_div",
     "[slots.wgrad.x]\norientation_source = \"transformed\"\n"},
    {"halo2_fp8", "dgrad.w", "e4m3fn/tensor/fp32/dec_div, transformed",
     "[slots.dgrad.w]\norientation_source = \"high_precision\"\n"},
    {"halo2_int8", "dgrad.dy", "int8/tensor/fp32/dec_div/left:hadamard:full",
     "[slots.dgrad.dy]\ntransform = \"none\"\n"},
    {"halo1_int8", "fprop.w", "int8/tensor/fp32/dec_div/hadamard:full",
     "[slots.default]\nformat = \"e4m3fn\"\n"},
    {"halo2_fp6", "dgrad.dy", "e3m2/tensor/fp32/dec_div/left:hadamard:full",
     "[slots.dgrad.dy]\ntransform = \"none\"\n"},
    {"halo0_int8", "dgrad", "ideal_exact/fast/bf16", "[gemm]\nschedule = \"promote:128\"\n"},
    {"switchback_int8", "dgrad.dy", "int8/row/fp32/dec_div", "[slots.dy]\ntile = \"tensor\"\n"},
    {"switchback_int8", "wgrad.x", "bf16", "[slots.wgrad.x]\nformat = \"int8\"\n"},
    {"coat", "fprop.x", "e4m3fn/tensor/fp32/dec_div/amax_epsilon:1e-10/epsilon_mode:add",
     "[slots.default]\nepsilon_mode = \"floor\"\n"},
    {"coat_activations_1x16", "saved mlp.inner",
     "e4m3fn/1x16/bf16/dec_div/amax_epsilon:1e-10/epsilon_mode:add",
     "[saved_activations]\ndefault = \"e4m3fn/1x16\"\n"},
    {"coat_activations_1x16", "saved attention.qkv", "bf16",
     "[saved_activations]\nattention.qkv = \"e4m3fn/1x16\"\n"},
    {"coat_activations_1x32", "saved input",
     "e4m3fn/1x32/bf16/dec_div/amax_epsilon:1e-10/epsilon_mode:add",
     "[saved_activations]\ninput = \"bf16\"\n"},
    {"coat_activations_1x128", "saved middle",
     "e4m3fn/1x128/bf16/dec_div/amax_epsilon:1e-10/epsilon_mode:add",
     "[saved_activations]\nmiddle = \"bf16\"\n"},
    {"coat_activations_tensor", "saved mlp.inner",
     "e4m3fn/tensor/bf16/dec_div/amax_epsilon:1e-10/epsilon_mode:add",
     "[saved_activations]\nmlp.inner = \"bf16\"\n"},
    {"fa3_fp8", "attention q", "e4m3fn/block/fp32/hadamard:full",
     "[attention]\nq = \"e4m3fn/block\"\nk = \"e4m3fn/block\"\n"},
    {"fa3_fp8", "attention v", "e4m3fn/block/fp32", "[attention]\nv = \"e4m3fn/head\"\n"},
    {"fa3_fp8", "attention p", "e4m3fn/static:0.00390625",
     "[attention]\np = \"e4m3fn/static:1\"\n"},
    {"fa3_fp8", "attention ds", "as it is", "[attention]\nds = \"e5m2/block\"\n"},
    {"fa3_fp8_no_hadamard", "attention k", "e4m3fn/block/fp32",
     "[attention]\nq = \"e4m3fn/token\"\nk = \"e4m3fn/token\"\n"},
    {"fa3_fp8_tensor", "attention v", "e4m3fn/tensor/fp32", "[attention]\nv = \"e4m3fn/block\"\n"},
    {"fp8_attention", "attention k", "e4m3fn/tensor/fp32/delayed",
     "[attention]\nk = \"e4m3fn/tensor\"\n"},
    {"fp8_attention", "attention ds", "e5m2/tensor/fp32/delayed", "[attention]\nds = \"bf16\"\n"},
    {"kv_scale_one", "attention v", "e4m3fn/static:1", "[attention]\nv = \"e4m3fn/static:0.01\"\n"},
    {"kv_scale_one", "attention q", "as it is", "[attention]\nq = \"e4m3fn/static:1\"\n"},
    {"infir2_saved", "saved input", "e4m3fn/1x128/pow2/enc_floor",
     "[saved_activations]\ndefault = \"bf16\"\n"},
    {"infir2_saved", "saved mlp.activated", "recompute",
     "[saved_activations]\nmlp.activated = \"bf16\"\n"},
    {"deepseek_v3_caches", "saved attention.out", "e5m6",
     "[saved_activations]\nattention.out = \"e4m3fn/1x128\"\n"},
    {"deepseek_v3_caches", "saved mlp.activated", "recompute",
     "[saved_activations]\nmlp.activated = \"bf16\"\n"},
    {"deepseek_v3_caches", "wgrad.x", "e4m3fn/1x128/pow2/ceil/dec_div_recip", kNoExceptions,
     "layers.1.attention.o"},
    {"jet_rl_saved", "saved attention.qkv", "e4m3fn/1x128/fp32/encode_limit:bf16",
     "[saved_activations]\nattention.qkv = \"bf16\"\n"},
    {"mask_e8m3", "wgrad.x", "e8m3/toward_zero", "[slots.default]\nformat = \"e8m4\"\n"},
    {"mask_e6m7", "fprop.w", "e6m7/toward_zero", "[slots.default]\nrounding = \"nearest\"\n"},
    {"static_fp8", "wgrad.dy", "e5m2", "[slots.dy]\nscale_source = \"current\"\n"},
    {"unit_scaling", "fprop.x", "e4m3fb8/stochastic", "[slots.default]\nformat = \"e4m3fn\"\n"},
    {"unit_scaling", "dgrad.dy", "e5m2fb16/stochastic",
     "[slots.default]\nrounding = \"nearest\"\n"},
    {"lns8", "fprop.x", "lns8/tensor/fp32", "[slots.default]\nformat = \"lns8g16\"\n"},
    {"ptq_e4m3", "fprop.w", "e4m3fn/row/fp32", "[slots.fprop.w]\ntile = \"tensor\"\n"},
    {"ptq_e3m4", "fprop.x", "e3m4/tensor/fp32", "[slots.fprop.x]\ntile = \"row\"\n"},
    {"ptq_int8", "fprop", "ideal_exact/fast/bf16", "[gemm.fprop]\naccumulator = \"ideal_fp32\"\n"},
    {"ptq_e5m2", "fprop.x", "e5m2", "[slots.fprop.x]\nscale_source = \"current\"\n"},
    {"gaudi2", "fprop.x", "e4m3_240/row/fp32", "[slots.fprop.x]\nformat = \"e4m3fn\"\n"},
    {"gaudi2_pow2", "fprop.w", "e4m3_240/row/pow2/enc_floor",
     "[slots.fprop.w]\nscale_rounding = \"ceil\"\n"},
};

TEST_CASE("each system's recipe has what defines the system, and a change of it shows") {
  for (const Feature& feature : kFeatures) {
    INFO(feature.recipe << " " << feature.where);
    const Recipe recipe = load_recipe(feature.recipe);
    const Recipe other = changed(feature.recipe, feature.change);
    CHECK(label_at(recipe, feature.where, feature.layer) == feature.expected);
    CHECK(label_at(other, feature.where, feature.layer) != feature.expected);
  }
}

TEST_CASE("recipes have the estimators of their systems, and read codes where those are") {
  const auto of = [](const char* recipe, Slot slot) {
    return load_recipe(recipe).linear.slot(slot);
  };
  for (const char* name :
       {"quartet", "quartet_nearest", "quartet_forward", "quartet_no_hadamard"}) {
    INFO(name);
    CHECK(estimator_name(of(name, Slot::fprop_x).estimator) == "clip_mask");
    CHECK(estimator_name(of(name, Slot::fprop_w).estimator) == "clip_mask");
    const OrientationSource source = std::string(name) == "quartet_no_hadamard"
                                         ? OrientationSource::requantized
                                         : OrientationSource::transformed;
    CHECK(of(name, Slot::wgrad_x).orientation_source == source);
    CHECK(of(name, Slot::dgrad_w).orientation_source == source);
  }
  for (const char* name : {"fp4_dge", "fp4_dge_occ"}) {
    CHECK(estimator_name(of(name, Slot::fprop_w).estimator) == "dge:5:3");
    CHECK(estimator_name(of(name, Slot::fprop_x).estimator) == "ste");
  }
  CHECK(estimator_name(of("fp4_occ", Slot::fprop_w).estimator) == "ste");
}

// Renewed by `fp8lab recipes show NAME` of every recipe, in the order of their names.
TEST_CASE("every recipe resolves to its recorded table") {
  std::string tables;
  for (const std::string& name : builtin_recipe_names()) tables += describe(load_recipe(name));
  CHECK(tables == read_file(std::string(FP8LAB_GOLDEN_DIR) + "/recipes.txt"));
}

TEST_CASE("fifty steps of every recipe are recorded") {
  for (const std::string& name : builtin_recipe_names()) {
    INFO(name);
    CHECK(is_file(std::string(FP8LAB_GOLDEN_DIR) + "/recipes/" + name + ".json"));
  }
}

TEST_CASE("every recipe says whose it is and where that is written") {
  for (const std::string& name : builtin_recipe_names()) {
    INFO(name);
    const Recipe recipe = load_recipe(name);
    CHECK_FALSE(recipe.system.empty());
    CHECK_FALSE(recipe.source.empty());
  }
}

TEST_CASE("the table of systems has every system of a recipe, and pages that exist") {
  const std::string experiments = std::string(FP8LAB_GOLDEN_DIR) + "/../../experiments/";
  const std::string table = read_file(experiments + "README.md");
  for (const std::string& name : builtin_recipe_names()) {
    INFO(name);
    CHECK(table.find("\n| " + load_recipe(name).system + " | ") != std::string::npos);
  }
  const std::string opening = "`results/";
  std::size_t pages = 0;
  for (std::size_t at = table.find(opening); at != std::string::npos;
       at = table.find(opening, at + 1)) {
    const std::size_t begin = at + 1, end = table.find('`', begin);
    if (end == at + opening.size()) continue;  // the folder itself
    INFO(table.substr(begin, end - begin));
    const std::filesystem::path page = experiments + table.substr(begin, end - begin);
    CHECK(std::filesystem::exists(std::filesystem::is_directory(page) ? page / "README.md" : page));
    ++pages;
  }
  CHECK(pages > 10);
}

TEST_CASE("evidence for a recipe is the weakest of its accumulators") {
  CHECK(evidence(load_recipe("infir2")) == Evidence::measured);
  CHECK(evidence(load_recipe("halo0_int8")) == Evidence::definition);
  const char* one_layer =
      "[[override]]\nmatch = \"layers.0\"\ngemm.accumulator = \"sm100_f8f6f4\"\n";
  CHECK(evidence(changed("te_current_fast", one_layer)) == Evidence::published);
}

TEST_CASE("a recipe may say only what differs from another") {
  const Recipe base = load_recipe("infir2");
  const Recipe same = changed("infir2", "");
  CHECK(same.hash == base.hash);
  CHECK(same.name == "changed");
  CHECK(same.summary.empty());
  CHECK(same.system == base.system);
  // Its text is complete: nothing else is needed to read it back.
  const Recipe wider = changed("infir2", "[slots.dy]\ntile = \"row\"\n");
  CHECK(wider.text.find("base") == std::string::npos);
  CHECK(parse_recipe(wider.text, "again").hash == wider.hash);
  CHECK(label(wider.linear.slot(Slot::dgrad_dy)) == "e4m3fn/row/pow2/enc_floor");
  CHECK(label(wider.linear.slot(Slot::fprop_x)) == label(base.linear.slot(Slot::fprop_x)));
}

TEST_CASE("bases that do not work are refused where they stand") {
  using Catch::Contains;
  CHECK_THROWS_WITH(parse_recipe("name = \"a\"\nbase = \"infir3\"\n", "a.toml"),
                    Contains("a.toml:2:") && Contains("infir2"));
  CHECK_THROWS_WITH(parse_recipe("base = 3\nname = \"a\"\n", "a.toml"),
                    Contains("a.toml:1:") && Contains("'base'") && Contains("a string"));
  CHECK_THROWS_WITH(parse_recipe("base = \"infir2\"\n", "a.toml"), Contains("'name'"));
  // A mistake in a file is told with its own line, also where another stands on it.
  CHECK_THROWS_WITH(changed("infir2", "[slots.dy]\ntil = \"row\"\n"),
                    Contains("changed.toml:4:") && Contains("'slots.dy.til'"));
}

TEST_CASE("a base may be a file, found from where it is named, and never its own base") {
  const ScratchDirectory folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  };
  write("inner.toml", "base = \"infir2\"\nname = \"inner\"\n[slots.w]\ntile = \"row\"\n");
  const Recipe outer = load_recipe(
      write("outer.toml", "base = \"./inner.toml\"\nname = \"o\"\n[slots.x]\ntile = \"row\"\n"));
  CHECK(label(outer.linear.slot(Slot::fprop_w)) == "e4m3fn/row/pow2/enc_floor");
  CHECK(label(outer.linear.slot(Slot::fprop_x)) == "e4m3fn/row/pow2/enc_floor");
  const std::string circle = write("circle.toml", "base = \"circle.toml\"\nname = \"c\"\n");
  CHECK_THROWS_WITH(load_recipe(circle), Catch::Contains("circle.toml:1:1: 'base'"));
}

}  // namespace
}  // namespace fp8lab
