// Recipes: built-in files, pattern matching, precedence of their tables, what is refused and why.
#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "emulation/spec/recipe.hpp"
#include "src/config/config.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "tests/error_fields.hpp"

namespace fp8lab {
namespace {

using numerics::ScaleArithmetic;
using numerics::ScaleFormat;
using numerics::ScaleRounding;

// A valid FP8 recipe to break in one place.
const std::string kBase =
    "name = \"t\"\n"
    "[slots.default]\n"
    "format = \"e4m3fn\"\n"
    "[gemm]\n"
    "accumulator = \"sm90_wgmma_fp8\"\n"
    "schedule = \"promote:128\"\n";

TEST_CASE("every built-in recipe is valid, named as its file and summarised in one line") {
  const std::vector<std::string> names = builtin_recipe_names();
  CHECK(std::is_sorted(names.begin(), names.end()));
  std::vector<std::string> hashes;
  for (const std::string& name : names) {
    INFO(name);
    const Recipe recipe = load_recipe(name);
    CHECK(recipe.name == name);
    CHECK_FALSE(recipe.summary.empty());
    CHECK(recipe.summary.find('\n') == std::string::npos);
    CHECK_NOTHROW(validate(recipe.high_precision, name));
    CHECK(describe(recipe).find(recipe.hash) != std::string::npos);
    hashes.push_back(recipe.hash);
  }
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::unique(hashes.begin(), hashes.end()) == hashes.end());
  for (const char* expected :
       {"bf16", "fp32", "te_current", "te_delayed", "e4m3_tensor", "torchao_rowwise", "infir2",
        "infir2_fp32scale", "deepseek_v3", "mxfp8", "fp8_block128"}) {
    CHECK(std::find(names.begin(), names.end(), expected) != names.end());
  }
}

TEST_CASE("built-in recipes resolve to the numerics of their papers") {
  const LinearRecipe infir2 = load_recipe("infir2").linear;
  for (const Slot slot : {Slot::fprop_x, Slot::dgrad_dy, Slot::wgrad_dy, Slot::wgrad_x}) {
    CHECK(infir2.slot(slot).tile == TileShape{1, 128});
    CHECK(infir2.slot(slot).scale.format == ScaleFormat::pow2);
    CHECK(infir2.slot(slot).scale.rounding == ScaleRounding::enc_floor);
    CHECK(infir2.slot(slot).scale_source == ScaleSource::current);
  }
  CHECK(infir2.slot(Slot::dgrad_w).tile == TileShape{128, 128});

  const LinearRecipe delayed = load_recipe("te_delayed").linear;
  CHECK(delayed.slot(Slot::fprop_x).format == numerics::kE4M3);
  CHECK(delayed.slot(Slot::wgrad_dy).format == numerics::kE5M2);
  CHECK(delayed.slot(Slot::dgrad_w).scale_source == ScaleSource::delayed);
  CHECK(delayed.slot(Slot::dgrad_w).history_length == 1024);
  CHECK(delayed.gemm(GemmRole::fprop).schedule == Schedule::fast);
  CHECK(schedule_name(delayed.gemm(GemmRole::wgrad)) == "promote:128");

  const Recipe deepseek = load_recipe("deepseek_v3");
  CHECK(deepseek.linear.slot(Slot::wgrad_x).orientation_source == OrientationSource::requantized);
  CHECK(deepseek.linear.slot(Slot::wgrad_dy).orientation_source ==
        OrientationSource::high_precision);
  CHECK(deepseek.linear.slot(Slot::dgrad_dy).scale.arithmetic == ScaleArithmetic::dec_div_recip);
  CHECK(deepseek.linear.slot(Slot::dgrad_dy).scale.amax_epsilon == 0.0f);
  const LinearRecipe& output = deepseek.for_layer("layers.3.attention.o", 8);
  CHECK(output.slot(Slot::fprop_x).scale.format == ScaleFormat::pow2);
  CHECK(output.slot(Slot::fprop_x).scale.rounding == ScaleRounding::ceil);
  CHECK(output.slot(Slot::dgrad_dy).scale.format == ScaleFormat::fp32);

  const LinearRecipe mx = load_recipe("mxfp8").linear;
  CHECK(mx.slot(Slot::dgrad_w).tile == TileShape{1, 32});
  CHECK(mx.slot(Slot::dgrad_w).scale.format == ScaleFormat::e8m0);
  CHECK(mx.slot(Slot::dgrad_w).scale.rounding == ScaleRounding::rceil);

  const Recipe fp32 = load_recipe("fp32");
  CHECK(fp32.activation_dtype == DType::f32);
  CHECK(fp32.high_precision.gemm(GemmRole::fprop).accumulator == Accumulator::ideal_fp32);
  CHECK(fp32.linear == fp32.high_precision);
  CHECK(load_recipe("bf16").linear == load_recipe("bf16").high_precision);
}

TEST_CASE("layer patterns") {
  struct Row {
    const char* pattern;
    const char* name;
    bool matches;
  };
  const Row rows[] = {
      {"lm_head", "lm_head", true},
      {"lm_head", "lm_head2", false},
      {"layers.0", "layers.0.mlp.down", true},
      {"layers.1", "layers.11.mlp.down", false},
      {"layers.*.mlp.down", "layers.11.mlp.down", true},
      {"layers.*.mlp", "layers.11.attention.o", false},
      {"layers.*.down", "layers.1.mlp.down", false},
      {"layers.1*.mlp", "layers.11.mlp.down", true},
      {"*", "layers.2.mlp.down", true},
      {"layers.first", "layers.0.mlp.down", true},
      {"layers.first", "layers.1.mlp.down", false},
      {"layers.last.mlp", "layers.11.mlp.down", true},
      {"layers.{first,last}.mlp.down", "layers.0.mlp.down", true},
      {"layers.{first,last}.mlp.down", "layers.11.mlp.down", true},
      {"layers.{first,last}.mlp.down", "layers.5.mlp.down", false},
      {"layers.{0,1}.{mlp.down,attention.o}", "layers.1.attention.o", true},
      {"layers.{0,1}.{mlp.down,attention.o}", "layers.1.attention.qkv", false},
      {"layers.0.mlp.down.x", "layers.0.mlp.down", false},
      {"mlp.down", "layers.0.mlp.down", false},
      {"l*y*s.5", "layers.5.mlp.down", true},
      {"l*e*e.5", "layers.5.mlp.down", false},
      {"lay*ers*s.5", "layers.5.mlp.down", false},
      {"layers.*1*", "layers.21.mlp.down", true},
      {"layers.*1*1*", "layers.21.mlp.down", false},
  };
  for (const Row& row : rows) {
    INFO(row.pattern << " against " << row.name);
    CHECK(layer_pattern_matches(row.pattern, row.name, 12) == row.matches);
  }
}

TEST_CASE("every field of a scale rule has a key, and aliases are combinations of them") {
  const std::string head = "name = \"t\"\n[gemm]\naccumulator = \"ideal_fp32\"\n";
  const auto slot = [&](const std::string& keys) {
    return parse_recipe(head + "schedule = \"promote:16\"\n[slots.default]\n" + keys, "r.toml")
        .linear.slot(Slot::fprop_x);
  };
  const QuantSpec coat = slot(
      "format = \"e4m3fn\"\ntile = \"1x16\"\nscale_format = \"bf16\"\n"
      "scale_arithmetic = \"dec_div\"\namax_epsilon = 1e-10\nepsilon_mode = \"add\"\n");
  CHECK(coat.scale.format == ScaleFormat::bf16);
  CHECK(coat.scale.epsilon_mode == numerics::EpsilonMode::add);
  CHECK(coat.scale.amax_epsilon == 1e-10f);
  const QuantSpec limited = slot("format = \"e3m4\"\ntile = \"1x16\"\nencode_limit = \"bf16\"\n");
  CHECK(limited.scale.encode_limit == numerics::EncodeLimit::bf16);
  const QuantSpec micro = slot(
      "format = \"mxint8\"\ntile = \"mx32\"\nscale_rounding = \"even\"\n"
      "scale_overflow = \"nan\"\nrounding = \"ties_down\"\n");
  CHECK(micro.format == numerics::kMxInt8);
  CHECK(micro.scale.scale_overflow == numerics::ScaleOverflow::nan);
  CHECK(micro.rounding == numerics::Rounding::ties_down);
  const QuantSpec nv = slot("format = \"e2m1\"\ntile = \"nv16\"\nfour_over_six = \"mae\"\n");
  CHECK(nv.scale.four_over_six == numerics::FourOverSix::mae);
  CHECK(nv == slot("format = \"e2m1\"\ntile = \"1x16\"\nscale_format = \"nv_two_level\"\n"
                   "four_over_six = \"mae\"\n"));
  CHECK(nv == parse_quant_spec("e2m1/nv16/mae"));
  const QuantSpec intel =
      parse_recipe(head +
                       "[slots.default]\nformat = \"e4m3_240\"\nscale_format = \"pow2\"\n"
                       "scale_rounding = \"enc_floor\"\nscale_source = \"delayed\"\n"
                       "history = 1\namax_algorithm = \"window\"\n",
                   "r.toml")
          .linear.slot(Slot::wgrad_dy);
  CHECK(intel.amax_algorithm == AmaxAlgorithm::window);
  CHECK(intel.format == numerics::kE4M3Ieee);
}

TEST_CASE("each field of a scale rule changes the hash, and keys left at their defaults do not") {
  const std::string head =
      "name = \"t\"\n[gemm]\naccumulator = \"ideal_fp32\"\nschedule = \"promote:16\"\n"
      "[slots.default]\ntile = \"1x16\"\namax_epsilon = 1e-6\n";
  const auto hash = [&](const std::string& keys) {
    return parse_recipe(head + keys, "r.toml").hash;
  };
  const std::string plain = hash("format = \"e4m3fn\"\n");
  CHECK(hash("format = \"e4m3fn\"\nepsilon_mode = \"floor\"\nencode_limit = \"fp32\"\n") == plain);
  std::vector<std::string> hashes = {plain};
  for (const char* keys :
       {"format = \"e4m3fn\"\nepsilon_mode = \"add\"\n",
        "format = \"e4m3fn\"\nencode_limit = \"bf16\"\n", "format = \"int8\"\n",
        "format = \"mxint8\"\n", "format = \"lns8\"\n", "format = \"lns8g16\"\n",
        "format = \"e4m3fn\"\nscale_format = \"bf16\"\n",
        "format = \"e4m3fn\"\nscale_format = \"e4m3\"\n",
        "format = \"e4m3fn\"\nscale_format = \"e8m0\"\n",
        "format = \"e4m3fn\"\nscale_format = \"e8m0\"\nscale_overflow = \"nan\"\n",
        "format = \"e4m3fn\"\nrounding = \"ties_down\"\n",
        "format = \"e4m3fn\"\nrounding = \"ties_positive\"\n"}) {
    hashes.push_back(hash(keys));
  }
  std::sort(hashes.begin(), hashes.end());
  CHECK(std::unique(hashes.begin(), hashes.end()) == hashes.end());
}

TEST_CASE("keys of a scale rule without effect are refused") {
  struct Row {
    const char* keys;
    const char* needed;
  };
  const Row rows[] = {
      {"epsilon_mode = \"add\"\n", "amax_epsilon above 0"},
      {"encode_limit = \"bf16\"\nscale_arithmetic = \"dec_div\"\n", "enc_div"},
      {"scale_overflow = \"nan\"\n", "e8m0"},
      {"four_over_six = \"mse\"\n", "nv_two_level"},
      {"tile = \"nv16\"\nscale_arithmetic = \"dec_div\"\n", "other than"},
      {"tile = \"nv16\"\nmargin = 1\n", "other than"},
      {"tile = \"nv16\"\nscale_rounding = \"ceil\"\n", "pow2"},
      {"tile = \"nv16\"\nscale_format = \"e8m0\"\n", "nv_two_level, or tile"},
      {"scale_format = \"nv_two_level\"\n", "tile other than tensor"},
      {"tile = \"1x16\"\nscale_format = \"nv_two_level\"\nscale_source = \"static\"\n", "accepted"},
      {"scale_format = \"bf16\"\nscale_rounding = \"ceil\"\n", "pow2"},
      {"rounding = \"ties_up\"\n", "ties_down, ties_positive"},
  };
  for (const Row& row : rows) {
    const std::string text =
        "name = \"t\"\n[gemm]\naccumulator = \"sm90_bf16\"\n"
        "schedule = \"promote:16\"\n[slots.default]\nformat = \"e2m1\"\n" +
        std::string(row.keys);
    INFO(text);
    CHECK_THROWS_WITH(parse_recipe(text, "r.toml"), Catch::Contains(row.needed));
  }
}

TEST_CASE("most specific table wins, nested or quoted") {
  const Recipe recipe = parse_recipe(
      "name = \"t\"\n"
      "[slots.wgrad.x]\ntile = \"1x32\"\n"
      "[slots.\"dgrad.w\"]\nformat = \"e5m2\"\n"
      "[slots.x]\ntile = \"1x64\"\n"
      "[slots.default]\nformat = \"e4m3fn\"\ntile = \"tensor\"\n"
      "[gemm]\nschedule = \"promote:32\"\nsplit_k = 2\n"
      "[gemm.dgrad]\nschedule = \"fast\"\noutput = \"fp32\"\n",
      "r.toml");
  CHECK(recipe.linear.slot(Slot::fprop_x).tile == TileShape{1, 64});
  CHECK(recipe.linear.slot(Slot::wgrad_x).tile == TileShape{1, 32});
  CHECK(recipe.linear.slot(Slot::wgrad_dy).tile.is_tensor());
  CHECK(recipe.linear.slot(Slot::dgrad_w).format == numerics::kE5M2);
  CHECK(recipe.linear.slot(Slot::fprop_w).format == numerics::kE4M3);
  CHECK(schedule_name(recipe.linear.gemm(GemmRole::fprop)) == "promote:32");
  CHECK(schedule_name(recipe.linear.gemm(GemmRole::dgrad)) == "fast");
  CHECK(recipe.linear.gemm(GemmRole::dgrad).split_k == 2);
  CHECK(recipe.linear.gemm(GemmRole::dgrad).output == DType::f32);
  CHECK(recipe.linear.gemm(GemmRole::wgrad).accumulator == Accumulator::sm90_wgmma_fp8);
}

TEST_CASE("exceptions: kept layers first, then the first override that matches") {
  const Recipe recipe =
      parse_recipe(kBase +
                       "[keep_high_precision]\nmodules = [\"lm_head\", \"embed\"]\n"
                       "[[override]]\nmatch = "
                       "\"layers.{first,last}.mlp.down\"\nslots.default.format = \"bf16\"\n"
                       "[[override]]\nmatch = \"*\"\nslots.dy.format = \"e5m2\"\n",
                   "r.toml");
  CHECK(recipe.for_layer("lm_head", 4) == recipe.high_precision);
  const LinearRecipe& down = recipe.for_layer("layers.3.mlp.down", 4);
  CHECK(down.slot(Slot::wgrad_dy).format == numerics::kBF16);
  CHECK(down.gemm(GemmRole::fprop).accumulator == Accumulator::sm90_bf16);
  CHECK(down.gemm(GemmRole::fprop).schedule == Schedule::fast);
  CHECK(down == recipe.high_precision);
  const LinearRecipe& middle = recipe.for_layer("layers.2.mlp.down", 4);
  CHECK(middle.slot(Slot::wgrad_dy).format == numerics::kE5M2);
  CHECK(middle.slot(Slot::wgrad_x).format == numerics::kE4M3);
  CHECK(middle.gemm(GemmRole::fprop).accumulator == Accumulator::sm90_wgmma_fp8);
}

TEST_CASE("in an exception an inherited second orientation ends with the space it was made in") {
  const std::string rotated =
      kBase +
      "[slots.fprop]\nx.transform = \"hadamard:16\"\nw.transform = \"hadamard:16\"\n"
      "[slots.wgrad.x]\norientation_source = \"transformed\"\n"
      "[[override]]\nmatch = \"layers.0\"\n";
  const std::string plain =
      "slots.fprop.x.transform = \"none\"\nslots.fprop.w.transform = \"none\"\n";
  const auto source_of = [&](const std::string& exception) {
    const Recipe recipe = parse_recipe(rotated + exception, "r.toml");
    return recipe.for_layer("layers.0.mlp.up", 2).slot(Slot::wgrad_x).orientation_source;
  };
  CHECK(source_of("") == OrientationSource::transformed);
  CHECK(source_of(plain) == OrientationSource::high_precision);
  CHECK(source_of("slots.wgrad.x.format = \"e5m2\"\n") == OrientationSource::transformed);
  CHECK_THROWS_WITH(source_of(plain + "slots.wgrad.x.orientation_source = \"transformed\"\n"),
                    Catch::Contains("transform of fprop.x is none"));
}

TEST_CASE("patterns of layers are read at once, whatever they list") {
  const auto accepted = [](const std::string& pattern) {
    const std::string text = kBase + "[[override]]\nmatch = \"" + pattern + "\"\n";
    try {
      parse_recipe(text, "r.toml");
      return true;
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Catch::Contains("names no linear layer"));
      return false;
    }
  };
  for (const char* pattern :
       {"*", "layers.999", "layers.12*.mlp", "layers.*7", "layers.1*2.mlp.down", "layers.last.*",
        "{layers.1{2,3}.mlp,x}", "*.{0,1,2,3}.*.{qkv,o}", "l*.5", "lm_{head,foot}"}) {
    INFO(pattern);
    CHECK(accepted(pattern));
  }
  std::string doubling = "layers.";
  for (int i = 0; i < 40; ++i) doubling += "{*,0}";
  for (const std::string& pattern :
       {std::string("layers.1000"), std::string("layers.x"), std::string("lm_head.x"),
        std::string("layers.0.mlp.w1"), std::string("{}"), std::string("x{"), doubling,
        std::string(300, '*') + "core"}) {
    INFO(pattern);
    CHECK_FALSE(accepted(pattern));
  }
}

TEST_CASE("an accumulator is a name or its parameters") {
  const auto fprop = [](const std::string& value) {
    const Recipe recipe = parse_recipe(kBase + "[gemm.fprop]\naccumulator = " + value + "\n", "r");
    return recipe.linear.gemm(GemmRole::fprop).accumulator;
  };
  Accumulator wanted = Accumulator::sm90_wgmma_fp8;
  wanted.group.fraction_bits = 14;
  wanted.group.output_mantissa_bits = 23;
  CHECK(fprop("{ products = 32, fraction_bits = 14, output_mantissa_bits = 23 }") == wanted);
  CHECK(fprop("\"" + accumulator_name(wanted) + "\"") == wanted);
  CHECK(fprop("{ fraction_bits = 13 }") == Accumulator::sm90_wgmma_fp8);
  const std::pair<const char*, const char*> wrong[] = {
      {"{ fraction_bits = 60 }", "0 to 48"},
      {"{ fraction = 13 }", "accumulator.fraction'; accepted: products, fraction_bits"},
      {"{ products = [32] }", "neither an integer nor a word"},
      {"\"custom(products=40)\"", "1 to 32"},
      {"\"sm90_wgma_fp8\"", "sm90_wgmma_fp8"},
      {"3", "accumulator"},
  };
  for (const auto& [value, part] : wrong) {
    INFO(value);
    CHECK_THROWS_WITH(fprop(value), Catch::Contains(part));
  }
}

TEST_CASE("the hash is of the numerics, not of the words") {
  const std::string hash = parse_recipe(kBase, "r.toml").hash;
  CHECK(hash.size() == 16);
  CHECK(parse_recipe("# a comment\nsummary = \"s\"\n" + kBase, "other.toml").hash == hash);
  CHECK(parse_recipe(kBase + "[gemm.wgrad]\noutput = \"fp32\"\n", "r.toml").hash == hash);
  CHECK(parse_recipe(kBase + "[gemm.wgrad]\nschedule = \"promote:64\"\n", "r.toml").hash != hash);
  CHECK(parse_recipe(kBase + "[keep_high_precision]\nmodules = [\"lm_head\"]\n", "r.toml").hash !=
        hash);
}

TEST_CASE("bad recipes are refused with place, key and what is accepted") {
  struct Row {
    std::string text;
    ErrorFields expected;
  };
  const Row rows[] = {
      {"name = \"t\"\nslot = 1\n",
       {.where = "r.toml:2:1", .noun = "unknown key", .key = "slot", .accepted = "name, summary"}},
      {"name = \"t\"\n[slots.default]\nfromat = \"bf16\"\n",
       {.where = "r.toml:3:1", .key = "slots.default.fromat", .accepted = "format, tile"}},
      {"name = \"t\"\n[slots.y]\n",
       {.where = "r.toml:2", .key = "slots.y", .accepted = "default, x, w, dy"}},
      {"name = \"t\"\n[slots.fprop.dy]\n", {.key = "slots.fprop.dy", .accepted = "x, w"}},
      {"name = \"t\"\n[gemm.bprop]\n", {.key = "gemm.bprop", .accepted = "fprop, dgrad, wgrad"}},
      {"name = 3\n",
       {.where = "r.toml:1:1", .key = "name", .found = "the integer 3", .accepted = "a string"}},
      {"summary = \"s\"\n", {.key = "name", .reason = "is missing"}},
      {"name = \"t\n", {.where = "r.toml:1:", .reason = "not TOML"}},
      {kBase + "[slots.x]\nformat = \"e4m4\"\n",
       {.key = "gemm.fprop.accumulator", .reason = "fprop.x, which is e4m4"}},
      {kBase + "[slots.x]\nformat = \"fp9\"\n",
       {.key = "slots.x.format", .found = "'fp9'", .accepted = "e4m3fn, e5m2"}},
      {kBase + "[slots.x]\nformat = \"e4m3\"\n",
       {.key = "slots.x.format", .nearest = "'e4m3fn'", .accepted = "ambiguous"}},
      {kBase + "[slots.x]\nformat = \"fp16\"\n",
       {.key = "gemm.fprop.accumulator", .reason = "fprop.x, which is fp16"}},
      {kBase + "[slots.x]\nformat = \"e8m0\"\n",
       {.key = "slots.fprop.x.format", .reason = "cannot be an operand"}},
      {kBase + "[slots.x]\ntile = \"128\"\n",
       {.where = "r.toml:8:1", .found = "'128'", .accepted = "tensor, row, RxC"}},
      {kBase + "[slots.x]\ntile = \"mx32\"\nscale_format = \"fp32\"\n",
       {.key = "slots.x.scale_format", .accepted = "e8m0"}},
      {kBase + "[slots.x]\nscale_format = \"fp8\"\n",
       {.found = "'fp8'", .accepted = "fp32, pow2, e8m0"}},
      {kBase + "[slots.x]\ntransform = \"hadamard\"\n",
       {.found = "'hadamard'", .accepted = "none"}},
      {kBase + "[slots.x]\ntransform = \"hadamard:18\"\n",
       {.where = "r.toml:8:1", .found = "'hadamard:18'"}},
      {kBase + "[slots.fprop.w]\ntransform = \"hadamard:16\"\n",
       {.where = "r.toml:8:1",
        .key = "slots.fprop.w.transform",
        .reason = "fprop.x has none and fprop.w has hadamard:16"}},
      {kBase + "[slots.fprop.x]\ntransform = \"hadamard:16\"\n"
               "[slots.fprop.w]\ntransform = \"hadamard:32\"\n",
       {.where = "r.toml:8:1", .key = "slots.fprop.x.transform", .reason = "do not cancel"}},
      {kBase + "[slots.x]\nformat = \"bf16\"\ntransform = \"hadamard:16\"\n",
       {.key = "slots.x.transform",
        .reason = "has no effect",
        .accepted = "a format other than bf16"}},
      {kBase + "[slots.fprop.x]\ntransform = \"left:hadamard:16\"\n",
       {.where = "r.toml:8:1",
        .key = "slots.fprop.x.transform",
        .reason = "may get a bias",
        .accepted = "in dgrad, wgrad"}},
      {kBase + "[slots.dgrad.dy]\ntransform = \"left:smooth:0.5\"\n",
       {.where = "r.toml:8:1", .found = "'left:smooth:0.5'", .accepted = "the same after left:"}},
      {kBase + "[slots.x]\ntransform = \"expand\"\n",
       {.key = "gemm.fprop.accumulator",
        .reason = "fprop.x, which is e4m3fn expanded",
        .accepted = "sm90_bf16"}},
      {kBase + "[slots.x]\nformat = \"e5m2\"\ntransform = \"expand\"\n",
       {.where = "r.toml:9:1",
        .key = "slots.fprop.x.transform",
        .reason = "range of e4m3fn, format is e5m2"}},
      {kBase + "[slots.x]\nscale_format = \"pow2\"\ntransform = \"expand\"\n",
       {.key = "slots.x.scale_format", .reason = "has no effect"}},
      {kBase + "[slots.x]\nscale_source = \"static\"\ntransform = \"expand\"\n",
       {.key = "slots.fprop.x.scale_source", .found = "expand", .reason = "has the codebook"}},
      {kBase + "[slots.x]\ntransform = \"smooth:2\"\n",
       {.found = "'smooth:2'", .accepted = "STRENGTH from 0 to 1"}},
      {kBase + "[slots.fprop.x]\ntransform = \"smooth:0.5\"\n", {.reason = "do not cancel"}},
      {kBase + "[slots.w]\ntransform = \"smooth:0.5\"\norientation_source = \"requantized\"\n",
       {.where = "r.toml:9:1",
        .key = "slots.dgrad.w.orientation_source",
        .reason = "dgrad.w has the transform smooth:0.5"}},
      {kBase + "[slots.fprop.w]\ntransform = \"smooth:0.5\"\n"
               "[slots.dgrad.w]\norientation_source = \"requantized\"\n",
       {.where = "r.toml:10:1",
        .key = "slots.dgrad.w.orientation_source",
        .reason = "but fprop.w has the transform"}},
      {kBase + "[slots.x]\ntransform = \"clamp:0.4\"\n",
       {.found = "'clamp:0.4'", .accepted = "QUANTILE above 0.5"}},
      {kBase + "[slots.x]\ntransform = \"clamp:0.99:compensated\"\n"
               "[slots.fprop.w]\ntransform = \"clamp:0.9:compensated\"\n",
       {.where = "r.toml:8:1",
        .key = "slots.fprop.x.transform",
        .accepted = "compensated in one of the two"}},
      {kBase + "[slots.x]\ntransform = \"clamp:0.99:compensated\"\n"
               "[slots.wgrad.x]\norientation_source = \"requantized\"\n",
       {.where = "r.toml:10:1",
        .key = "slots.wgrad.x.orientation_source",
        .accepted = "a clamp without compensation"}},
      {kBase + "[slots.dy]\nestimator = \"clip_mask\"\n",
       {.where = "r.toml:8:1",
        .key = "slots.dy.estimator",
        .reason = "x and w of the forward pass",
        .accepted = "slots.fprop.w"}},
      {kBase + "[slots.x]\nestimator = \"dge:5\"\n",
       {.found = "'dge:5'", .accepted = "ste, clip_mask, dge:K:CAP"}},
      {kBase + "[slots.fprop.x]\nformat = \"bf16\"\nestimator = \"clip_mask\"\n",
       {.key = "slots.fprop.x.estimator", .reason = "has no effect", .accepted = "at most 8 bits"}},
      {kBase + "[slots.x]\ntransform = \"clamp:0.99\"\nestimator = \"clip_mask\"\n",
       {.where = "r.toml:9:1", .key = "slots.fprop.x.estimator", .reason = "what is not clamped"}},
      {kBase + "[slots.fprop.x]\nestimator = \"clip_mask\"\n"
               "[slots.dgrad.dy]\ntransform = \"left:hadamard:16\"\n",
       {.where = "r.toml:8:1", .key = "slots.fprop.x.estimator", .accepted = "rows of dgrad.dy"}},
      {kBase + "[slots.fprop]\nx.transform = \"hadamard:16\"\nw.transform = \"hadamard:16\"\n"
               "x.estimator = \"clip_mask\"\n",
       {.key = "slots.fprop.x.estimator",
        .reason = "space of hadamard:16",
        .accepted = "transformed\" in dgrad.w"}},
      {kBase + "[slots.fprop.w]\nestimator = \"clip_mask\"\n"
               "[slots.dgrad]\ndy.transform = \"hadamard:16\"\nw.transform = \"hadamard:16\"\n"
               "[slots.wgrad.dy]\norientation_source = \"transformed\"\n",
       {.key = "slots.fprop.w.estimator", .accepted = "rows of wgrad.dy"}},
      {kBase + "[slots.x]\nscale_statistic = \"std:3\"\n",
       {.where = "r.toml:8:1",
        .key = "slots.fprop.x.scale_statistic",
        .found = "std:3",
        .reason = "of tile tensor",
        .accepted = "1024"}},
      {kBase + "[slots.x]\ntile = \"1x1056\"\nscale_statistic = \"std:3\"\n",
       {.key = "slots.fprop.x.scale_statistic", .reason = "tile 1x1056"}},
      {kBase + "[slots.x]\nscale_source = \"delayed\"\nscale_statistic = \"std:3\"\n",
       {.key = "slots.fprop.x.scale_statistic",
        .reason = "that of the tile",
        .accepted = "current"}},
      {kBase + "[slots.x]\nscale_factor = 1.5\n",
       {.key = "slots.x.scale_factor", .reason = "has no effect", .accepted = "pow2"}},
      {kBase + "[slots.x]\nscale_format = \"pow2\"\nscale_factor = 3\n",
       {.key = "slots.x.scale_factor", .accepted = "from 0.5 to 2"}},
      {kBase + "[slots.x]\nscale_format = \"pow2\"\nscale_factor = 0.5\n",
       {.key = "slots.fprop.x.scale_factor", .reason = "infinite", .accepted = "above 0.5"}},
      {kBase + "[slots.x]\nmargin = 17\n",
       {.key = "slots.x.margin", .accepted = "an integer from 0 to 16"}},
      {kBase + "[slots.x]\nmargin = 0.5\n",
       {.found = "the number 0.5", .accepted = "an integer from 0 to 16"}},
      {kBase + "[slots.x]\namax_epsilon = -1\n",
       {.key = "slots.x.amax_epsilon", .accepted = "from 0 to 1"}},
      {kBase + "[slots.x]\nhistory = 16\n",
       {.where = "r.toml:8:1",
        .key = "slots.x.history",
        .reason = "has no effect",
        .accepted = "delayed"}},
      {kBase + "[slots.x]\nscale_rounding = \"ceil\"\n",
       {.key = "slots.x.scale_rounding", .reason = "has no effect", .accepted = "pow2"}},
      {kBase + "[slots.x]\nformat = \"bf16\"\ntile = \"1x128\"\n",
       {.key = "slots.x.tile", .reason = "has no effect"}},
      {kBase + "[slots.x]\nscale_source = \"delayed\"\ntile = \"row\"\n",
       {.where = "r.toml:8:1",
        .key = "slots.fprop.x.scale_source",
        .reason = "one history a tensor",
        .accepted = "tile = \"tensor\""}},
      {kBase + "[slots.x]\nweight_source = \"master\"\n",
       {.key = "slots.x.weight_source", .reason = "only w"}},
      {kBase + "[slots.wgrad.x]\norientation_source = \"transformed\"\n",
       {.where = "r.toml:8:1",
        .key = "slots.wgrad.x.orientation_source",
        .reason = "transform of fprop.x is none",
        .accepted = "requantized"}},
      {kBase + "[slots.x]\ntransform = \"clamp:0.99\"\n"
               "[slots.wgrad.x]\norientation_source = \"transformed\"\n",
       {.where = "r.toml:10:1",
        .key = "slots.wgrad.x.orientation_source",
        .reason = "transform of fprop.x is clamp:0.99"}},
      {kBase + "[slots.dgrad.dy]\ntransform = \"left:hadamard:16\"\n"
               "[slots.wgrad.dy]\norientation_source = \"transformed\"\n",
       {.where = "r.toml:10:1", .reason = "transform of dgrad.dy is left:hadamard:16"}},
      {kBase + "[slots.fprop]\nx.transform = \"hadamard:16\"\nw.transform = \"hadamard:16\"\n"
               "[slots.wgrad.x]\norientation_source = \"transformed\"\n"
               "transform = \"left:hadamard:16\"\n",
       {.where = "r.toml:12:1", .key = "slots.wgrad.x.transform", .reason = "transformed already"}},
      {kBase + "[slots.fprop.x]\nformat = \"bf16\"\n[gemm.fprop]\naccumulator = \"sm90_bf16\"\n"
               "[slots.wgrad.x]\norientation_source = \"transformed\"\n",
       {.key = "slots.wgrad.x.orientation_source", .reason = "fprop.x is bf16"}},
      {kBase + "[slots.fprop]\nx.transform = \"hadamard:16\"\nw.transform = \"hadamard:16\"\n"
               "[slots.wgrad]\nx.orientation_source = \"transformed\"\n"
               "x.transform = \"smooth:0.5\"\ndy.transform = \"smooth:0.5\"\n",
       {.key = "slots.wgrad.x.orientation_source",
        .reason = "wgrad.x has the transform smooth:0.5"}},
      {kBase + "[slots.fprop.x]\norientation_source = \"requantized\"\n",
       {.key = "slots.fprop.x.orientation_source", .reason = "second orientations"}},
      {kBase + "[slots.wgrad.x]\norientation_source = \"dequantized\"\n",
       {.where = "r.toml:8:1", .reason = "not quantized again", .accepted = "bf16"}},
      {kBase + "[slots.fprop.x]\nformat = \"bf16\"\n[gemm.fprop]\naccumulator = \"sm90_bf16\"\n"
               "[slots.wgrad.x]\norientation_source = \"requantized\"\n",
       {.key = "slots.wgrad.x.orientation_source", .reason = "fprop.x is bf16"}},
      {kBase + "[slots.w]\nformat = \"bf16\"\n",
       {.where = "r.toml:5:1",
        .key = "gemm.fprop.accumulator",
        .reason = "fprop.w, which is bf16",
        .accepted = "sm90_bf16"}},
      {kBase + "[slots.w]\nformat = \"e3m4\"\n",
       {.found = "sm90_wgmma_fp8", .reason = "cannot multiply fprop.w, which is e3m4"}},
      {"name = \"t\"\n[slots.default]\nformat = \"fp32\"\n[gemm]\naccumulator = \"sm90_bf16\"\n",
       {.where = "r.toml:5:1",
        .found = "sm90_bf16",
        .reason = "cannot multiply",
        .accepted = "ideal_fp32"}},
      {kBase + "[gemm.fprop]\naccumulator = \"sm100\"\n",
       {.found = "'sm100'", .accepted = "sm90_wgmma_fp8"}},
      {kBase + "[gemm.fprop]\nschedule = \"promote\"\n",
       {.found = "'promote'", .accepted = "promote:128"}},
      {kBase + "[gemm.fprop]\nschedule = \"promote:48\"\n", {.accepted = "multiple of 32"}},
      {kBase + "[slots.x]\ntile = \"1x64\"\n",
       {.key = "gemm.fprop.schedule", .reason = "1x64", .accepted = "promote:32, promote:64"}},
      {kBase + "[slots.x]\ntile = \"1x128\"\n[gemm.fprop]\nschedule = \"fast\"\n",
       {.where = "r.toml:10:1", .key = "gemm.fprop.schedule", .accepted = "promote:128"}},
      {kBase + "[slots.x]\ntile = \"1x128\"\n[gemm.fprop]\nscale_order = \"epilogue\"\n",
       {.key = "gemm.fprop.scale_order", .reason = "change along K"}},
      {kBase + "[gemm.fprop]\nschedule = \"fast\"\nscale_order = \"b_then_a\"\n",
       {.key = "gemm.fprop.scale_order", .reason = "schedule is fast"}},
      {kBase + "[gemm.fprop]\nsplit_k = 0\n",
       {.key = "gemm.fprop.split_k", .accepted = "from 1 to 64"}},
      {kBase + "[keep_high_precision]\nmodules = [\"mlp.down\"]\n",
       {.found = "'mlp.down'", .accepted = "layers.N.mlp.down"}},
      {kBase + "[keep_high_precision]\nmodules = [1]\n",
       {.where = "r.toml:8:", .accepted = "a list of strings"}},
      {kBase + "[[override]]\nmatch = \"embed\"\n",
       {.where = "r.toml:8:1", .reason = "names no linear layer"}},
      {kBase + "[[override]]\nmatch = \"lm_head\"\nslots.x.format = \"bf16\"\n",
       {.where = "override \"lm_head\"", .key = "gemm.fprop.accumulator"}},
      {kBase + "[override]\nmatch = \"lm_head\"\n", {.accepted = "a list of tables, [[override]]"}},
      {kBase + "[slots.wgrad.x]\nmargin = 1\n[slots.\"wgrad.x\"]\nmargin = 1\n",
       {.key = "slots.wgrad.x", .reason = "written twice"}},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    check_fields(fields_thrown_by([&] { parse_recipe(row.text, "r.toml"); }), row.expected);
  }
}

TEST_CASE("saved activations are read by name, quoted or nested, and for all others") {
  const auto with = [](const std::string& saved) {
    return parse_recipe("base = \"infir2\"\nname = \"a\"\n[saved_activations]\n" + saved, "a.toml");
  };
  const Recipe nested = with(
      "default = \"e4m3fn/1x16\"\nmlp.inner = \"e5m2/1x128/pow2\"\nattention.qkv = \"bf16\"\n"
      "mlp.activated = \"recompute\"\n");
  const Recipe quoted = with(
      "\"mlp.activated\" = \"recompute\"\n\"mlp.inner\" = \"e5m2/1x128/pow2\"\n"
      "\"attention.qkv\" = \"bf16\"\ndefault = \"e4m3fn/1x16\"\n");
  CHECK(nested.saved_activations == quoted.saved_activations);
  CHECK(nested.hash == quoted.hash);
  CHECK(label(nested.saved_activation("mlp.inner")->spec) == "e5m2/1x128/pow2/enc_floor");
  CHECK(label(nested.saved_activation("middle")->spec) == "e4m3fn/1x16/fp32");
  CHECK_FALSE(nested.saved_activation("attention.qkv")->spec.is_cast());
  CHECK(nested.saved_activation("mlp.activated")->is_recomputed);
  const Recipe plain = load_recipe("infir2");
  CHECK(plain.saved_activation("mlp.inner") == nullptr);
  CHECK(plain.hash != nested.hash);
  CHECK(with("middle = \"e4m3fn\"").hash != with("input = \"e4m3fn\"").hash);
  CHECK(with("middle = \"e4m3fn\"").hash != with("middle = \"e4m3fn/1x16\"").hash);
  // The text of a run file gives the same recipe.
  CHECK(parse_recipe(nested.text, "again").hash == nested.hash);

  using Catch::Contains;
  CHECK_THROWS_WITH(with("inner = \"bf16\"\n"), Contains("a.toml:4:1") &&
                                                    Contains("'saved_activations.inner'") &&
                                                    Contains("mlp.inner"));
  CHECK_THROWS_WITH(with("middle = \"recompute\"\n"), Contains("mlp.activated"));
  CHECK_THROWS_WITH(with("middle = \"e4m3\"\n"), Contains("a.toml:4:1") && Contains("e4m3fn"));
  CHECK_THROWS_WITH(with("middle = \"fp32\"\n"), Contains("activations are bf16"));
  CHECK_THROWS_WITH(with("middle = \"e4m3fn/tensor/delayed\"\n"), Contains("its own amax"));
  CHECK_THROWS_WITH(with("middle = \"e4m3fn/smooth:0.5\"\n"), Contains("expand, or none"));
  CHECK_THROWS_WITH(with("middle = \"e5m6/1x128\"\n"), Contains("takes no scale"));
  CHECK_THROWS_WITH(with("mlp.inner = \"e4m3fn\"\n\"mlp.inner\" = \"e4m3fn\"\n"),
                    Contains("written twice"));
  CHECK_THROWS_WITH(with("\n"), Contains("'saved_activations': the table is empty"));
}

TEST_CASE("an unknown recipe name is told with the nearest one") {
  check_fields(
      fields_thrown_by([] { load_recipe("infir3"); }),
      {.noun = "unknown recipe", .key = "infir3", .nearest = "'infir2'", .accepted = "the "});
  check_fields(fields_thrown_by([] { load_recipe("no/such.toml"); }),
               {.key = "no/such.toml", .reason = "does not exist"});
}

TEST_CASE("quantizers and GEMMs in words") {
  for (const char* words :
       {"e4m3fn/1x128/pow2/enc_floor", "e5m2/tensor/fp32", "e2m1/1x32/e8m0/rceil/stochastic",
        "bf16", "e4m3fn", "e4m3fn/row/fp32/toward_zero", "e2m1/1x16/nv_two_level/ties_down",
        "int8/row/fp32", "e8m3/stochastic", "lns8/tensor/bf16"}) {
    CHECK(label(parse_quant_spec(words)) == words);
  }
  for (const char* words : {"sm90_wgmma_fp8/promote:128/f32", "sm90_bf16/fast/bf16",
                            "sm90_wgmma_fp8/promote:64/bf16/split_k:3"}) {
    CHECK(label(parse_gemm_spec(words)) == words);
  }
  const QuantSpec infir2 = parse_quant_spec("e4m3fn/1x128/pow2/enc_floor");
  CHECK(infir2 == load_recipe("infir2").linear.slot(Slot::fprop_x));
  CHECK(parse_quant_spec("e4m3fn/mx32/rceil") == load_recipe("mxfp8").linear.slot(Slot::fprop_w));
  CHECK(parse_quant_spec("e5m2/static:0.5").static_scale == 0.5f);
  CHECK(parse_gemm_spec("sm90_wgmma_fp8/promote:128/fp32/product_first").scale_order ==
        ScaleOrder::product_first);
  for (const char* bad :
       {"", "fp9", "e4m3", "e4m3fn/", "e4m3fn/1x", "e4m3fn/nearest", "e4m3fn/static:0",
        "e4m3fn/static:x", "bf16/tensor", "e4m3fn/1x128/static:2", "e4m3fn/1x128/mae",
        "e8m3/tensor", "bf16/stochastic"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_quant_spec(bad), Error);
  }
  for (const char* bad : {"", "sm100", "sm90_bf16/", "sm90_bf16/promote:0", "sm90_bf16/split_k:0",
                          "sm90_bf16/split_k:65", "sm90_bf16/f64"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_gemm_spec(bad), Error);
  }
}

TEST_CASE("warnings name operand and shape") {
  const auto any = [](const std::vector<std::string>& list, const std::string& part) {
    return std::any_of(list.begin(), list.end(), [&](const std::string& line) {
      return line.find(part) != std::string::npos;
    });
  };
  const LinearRecipe infir2 = load_recipe("infir2").linear;
  CHECK(any(warnings(infir2, 1024, 896, 4864 + 64), "dgrad.dy: K = 4928 is not a multiple of 128"));
  CHECK_FALSE(any(warnings(infir2, 1024, 896, 4864), "is not a multiple of"));
  CHECK(
      any(warnings(load_recipe("te_current").linear, 1024, 4864, 896), "one chain over K = 4864"));
  CHECK(any(warnings(load_recipe("fp8_block128").linear, 1024, 256, 256), "cuBLASLt refuses"));
  CHECK(any(warnings(load_recipe("deepseek_v3_floor").linear, 1024, 256, 256),
            "wgrad.dy: gradients"));
  CHECK(any(warnings(load_recipe("te_delayed").linear, 1024, 256, 256), "delayed"));
  CHECK(warnings(load_recipe("bf16").linear, 100, 33, 7).empty());
  const Recipe unscaled = parse_recipe(
      "name = \"t\"\n[slots.default]\nformat = \"e4m3fn\"\nscale_source = \"none\"\n", "r.toml");
  CHECK(any(warnings(unscaled.linear, 64, 64, 64), "without a scale reaches only 2^-9 to 2^8"));
}

}  // namespace
}  // namespace fp8lab
