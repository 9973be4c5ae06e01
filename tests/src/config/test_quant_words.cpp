// Quantizers in words: what is printed reads back as the same quantizer, and no word is ignored.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/numerics/scaling.hpp"
#include "emulation/spec/estimator.hpp"
#include "emulation/spec/recipe.hpp"
#include "emulation/spec/spec_fields.hpp"
#include "src/config/config.hpp"
#include "src/config/reading/library_call.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "tests/error_fields.hpp"

namespace fp8lab {
namespace {

using numerics::ScaleFormat;
using numerics::ScaleRounding;

// What a label says of a quantizer: all but what the matrix is made from and how its gradient goes
// on.
QuantSpec said_by_label(QuantSpec spec) {
  spec.orientation_source = OrientationSource::high_precision;
  spec.weight_source = WeightSource::bf16;
  spec.estimator = {};
  return effective(spec);
}

void check_round_trip(const QuantSpec& spec) {
  const std::string words = label(spec);
  INFO(words);
  const QuantSpec read = parse_quant_spec(words);
  CHECK(read == said_by_label(spec));
  CHECK(label(read) == words);
}

void check_round_trips(const LinearRecipe& recipe) {
  for (const Slot slot : kSlots) check_round_trip(recipe.slot(slot));
  for (const GemmRole role : kGemmRoles) {
    const GemmSpec& gemm = recipe.gemm(role);
    INFO(label(gemm));
    CHECK(parse_gemm_spec(label(gemm)) == gemm);
  }
}

class Draw {
 public:
  template <class T>
  T of(const std::vector<T>& values) {
    return values[generator_() % values.size()];
  }
  // The first value in half of all draws.
  template <class T>
  T mostly(const std::vector<T>& values) {
    return generator_() % 2 == 0 ? values.front() : of(values);
  }

 private:
  std::mt19937 generator_{20};
};

numerics::ScaleRule draw_rule(Draw& draw) {
  using numerics::EncodeLimit, numerics::EpsilonMode, numerics::FourOverSix;
  using numerics::ScaleArithmetic, numerics::ScaleOverflow;
  numerics::ScaleRule rule;
  rule.format =
      draw.of<ScaleFormat>({ScaleFormat::fp32, ScaleFormat::pow2, ScaleFormat::e8m0,
                            ScaleFormat::bf16, ScaleFormat::e4m3, ScaleFormat::nv_two_level});
  rule.rounding = draw.of<ScaleRounding>(
      {ScaleRounding::nearest, ScaleRounding::ceil, ScaleRounding::enc_floor,
       ScaleRounding::ocp_floor, ScaleRounding::rceil, ScaleRounding::even, ScaleRounding::floor});
  rule.arithmetic = draw.mostly<ScaleArithmetic>(
      {ScaleArithmetic::enc_div, ScaleArithmetic::dec_div_recip, ScaleArithmetic::dec_div});
  rule.amax_epsilon = draw.mostly<float>({0.0f, 1e-12f, 1e-4f, 0.1f, 1.0f, 0x1.abcdefp-20f});
  rule.epsilon_mode = draw.mostly<EpsilonMode>({EpsilonMode::floor, EpsilonMode::add});
  rule.margin = draw.mostly<int>({0, 1, 16});
  rule.encode_limit = draw.mostly<EncodeLimit>({EncodeLimit::fp32, EncodeLimit::bf16});
  rule.scale_overflow = draw.mostly<ScaleOverflow>({ScaleOverflow::saturate, ScaleOverflow::nan});
  rule.four_over_six =
      draw.mostly<FourOverSix>({FourOverSix::none, FourOverSix::mae, FourOverSix::mse});
  rule.outer =
      draw.mostly<numerics::OuterScale>({numerics::OuterScale::tensor, numerics::OuterScale::row});
  rule.deviations = draw.mostly<float>({0.0f, 2.92247856f, 64.0f});
  rule.factor = draw.mostly<float>({1.0f, 1.3333334f, 0.5f});
  return rule;
}

QuantSpec draw_spec(Draw& draw) {
  using numerics::Overflow, numerics::Rounding;
  QuantSpec spec;
  spec.format = *format_by_name(draw.of<std::string>(
      {"e4m3fn",      "e5m2",     "e2m1",  "e4m3_240", "e3m4",    "e2m3",    "int8",
       "int5",        "mxint8",   "lns8",  "lns6g4",   "logfmt8", "logfmt4", "e4m3fnb11",
       "e4m3fnuzb11", "e3m4ieee", "e5m2f", "e5m6",     "bf16",    "fp32"}));
  spec.transform = *transform_from_name(draw.mostly<std::string>(
      {"none", "hadamard:16", "hadamard:full", "hadamard:16:drawn", "hadamard:32:+-+-:after",
       "left:hadamard:16:drawn", "smooth:0.5", "smooth:0.1:static", "expand", "clamp:0.99",
       "clamp:0.9999:compensated", "clamp:0.999:compensated:quantized"}));
  if (!spec.is_quantized() && spec.transform.is<RangeExpansion>())
    spec.transform = {};  // not for these
  spec.scale = draw_rule(draw);
  spec.scale_source =
      spec.has_codebooks()
          ? ScaleSource::current
          : draw.of<ScaleSource>({ScaleSource::current, ScaleSource::current, ScaleSource::delayed,
                                  ScaleSource::static_scale, ScaleSource::none});
  if (spec.scale_source == ScaleSource::current) {
    spec.tile =
        draw.of<TileShape>({{0, 0}, {1, 0}, {1, 16}, {1, 32}, {1, 128}, {128, 128}, {3, 7}});
  }
  spec.static_scale = draw.of<float>({1.0f, 0.5f, 0.1f, 3e-30f, 0x1.23456p90f});
  spec.history_length = draw.of<int>({1, 16, 1024, 65536});
  spec.amax_algorithm = draw.of<AmaxAlgorithm>(
      {AmaxAlgorithm::max, AmaxAlgorithm::most_recent, AmaxAlgorithm::window});
  spec.warmup_steps = draw.of<int>({0, 1, 16, 65536});
  spec.rounding =
      draw.mostly<Rounding>({Rounding::nearest, Rounding::ties_down, Rounding::ties_positive,
                             Rounding::toward_zero, Rounding::stochastic});
  if (spec.rounding == Rounding::stochastic) spec.random_bits = draw.of<int>({0, 1, 8, 16, 32});
  spec.via = *format_by_name(draw.mostly<std::string>({"fp32", "fp16", "bf16", "e8m10"}));
  spec.overflow = draw.mostly<Overflow>({Overflow::saturate, Overflow::special});
  spec.weight_source = draw.of<WeightSource>({WeightSource::bf16, WeightSource::master});
  spec.estimator = *estimator_from_name(draw.mostly<std::string>({"ste", "clip_mask", "dge:5:3"}));
  return spec;
}

QuantSpec slot_of(const std::string& keys, Slot slot = Slot::fprop_x) {
  return parse_recipe(
             "name = \"t\"\n[gemm]\naccumulator = \"ideal_fp32\"\n"
             "schedule = \"promote:16\"\n[slots.default]\n" +
                 keys,
             "r.toml")
      .linear.slot(slot);
}

}  // namespace

TEST_CASE("the label of every operand of every built-in recipe reads back as that quantizer") {
  for (const std::string& name : builtin_recipe_names()) {
    INFO(name);
    const Recipe recipe = load_recipe(name);
    check_round_trips(recipe.linear);
    check_round_trips(recipe.high_precision);
    for (const RecipeOverride& exception : recipe.overrides) check_round_trips(exception.recipe);
  }
}

TEST_CASE("labels of drawn quantizers read back") {
  // A field that is new here does not compile: labels and words have to say it.
  const auto& [format, tile, scale, source, rounding, bits, via, overflow, fixed, history,
               algorithm, warmup, orientation, weight, transform, estimator] = QuantSpec{};
  CHECK(history == 1024);
  Draw draw;
  int scaled = 0;
  for (int i = 0; i < 20000; ++i) {
    const QuantSpec spec = draw_spec(draw);
    scaled += effective(spec).has_scale() ? 1 : 0;
    check_round_trip(spec);
  }
  CHECK(scaled > 10000);
}

TEST_CASE("labels say all that shapes a scale") {
  CHECK(label(load_recipe("infir2").linear.slot(Slot::fprop_x)) == "e4m3fn/1x128/pow2/enc_floor");
  CHECK(label(load_recipe("deepseek_v3_floor").linear.slot(Slot::fprop_x)) ==
        "e4m3fn/1x128/fp32/dec_div_recip/amax_epsilon:0.0001");
  CHECK(label(load_recipe("torchao_rowwise").linear.slot(Slot::fprop_w)) ==
        "e4m3fn/row/pow2/enc_floor/amax_epsilon:1e-12");
  CHECK(label(load_recipe("te_delayed").linear.slot(Slot::dgrad_dy)) == "e5m2/tensor/fp32/delayed");
  CHECK(label(parse_quant_spec("e4m3fn/static:0.25")) == "e4m3fn/static:0.25");
  CHECK(label(parse_quant_spec("e2m1/nv16/mse")) == "e2m1/1x16/nv_two_level/mse");
  CHECK(label(parse_quant_spec("e5m2/1x16/pow2/scale_rounding:nearest")) ==
        "e5m2/1x16/pow2/scale_rounding:nearest");
  CHECK(label(parse_quant_spec("e2m1/nv16/outer_scale:row/stochastic:8")) ==
        "e2m1/1x16/nv_two_level/outer_scale:row/stochastic:8");
  CHECK(label(parse_quant_spec("e4m3fn/stochastic:16/via:bf16")) ==
        "e4m3fn/via:bf16/stochastic:16");
}

TEST_CASE("one rule rounds powers of two for which nothing is said, in words and in recipes") {
  const auto rounding = [](const std::string& words) {
    return parse_quant_spec("e4m3fn/" + words).scale.rounding;
  };
  CHECK(rounding("1x128/pow2") == ScaleRounding::enc_floor);
  CHECK(rounding("pow2/row") == ScaleRounding::enc_floor);
  CHECK(rounding("1x32/e8m0") == ScaleRounding::rceil);
  CHECK(rounding("mx32") == ScaleRounding::ocp_floor);
  CHECK(rounding("mx32/rceil") == ScaleRounding::rceil);
  CHECK(rounding("tensor/pow2/delayed") == ScaleRounding::enc_floor);
  const std::string head = "format = \"e4m3fn\"\n";
  const std::vector<std::pair<std::string, std::string>> same = {
      {"1x128/pow2", "tile = \"1x128\"\nscale_format = \"pow2\"\n"},
      {"1x32/e8m0", "tile = \"1x32\"\nscale_format = \"e8m0\"\n"},
      {"mx32", "tile = \"mx32\"\n"},
      {"mx32", "tile = \"mx32\"\nscale_format = \"e8m0\"\n"},
      {"mx32/even", "tile = \"mx32\"\nscale_rounding = \"even\"\n"},
      {"row/pow2/scale_rounding:nearest",
       "tile = \"row\"\nscale_format = \"pow2\"\nscale_rounding = \"nearest\"\n"}};
  for (const auto& [words, keys] : same) {
    INFO(words);
    CHECK(parse_quant_spec("e4m3fn/" + words) == slot_of(head + keys));
  }
  // A table further in changes the scale format, or the tile alone.
  const std::string mx = head + "tile = \"mx32\"\n";
  CHECK(slot_of(mx + "[slots.x]\nscale_format = \"pow2\"\n").scale.rounding ==
        ScaleRounding::enc_floor);
  CHECK(slot_of(mx + "[slots.x]\ntile = \"32x32\"\n").scale.rounding == ScaleRounding::ocp_floor);
  CHECK(slot_of(mx + "[slots.x]\ntile = \"nv16\"\n").scale.rounding == ScaleRounding::nearest);
  CHECK(slot_of(mx + "scale_rounding = \"ceil\"\n[slots.x]\nscale_format = \"pow2\"\n")
            .scale.rounding == ScaleRounding::ceil);
}

TEST_CASE("no element saturates under the rounding of powers of two for which nothing is said") {
  std::mt19937 engine(21);
  const auto generator = [&] { return static_cast<std::uint32_t>(engine()); };
  for (const char* words : {"pow2", "e8m0", "mx32"}) {
    bool saturates = false;
    for (const char* name : {"e4m3fn", "e5m2", "e4m3_240", "e2m1", "e2m3", "int8", "mxint8"}) {
      const QuantSpec spec = parse_quant_spec(fmt::format("{}/{}", name, words));
      const float maximum = numerics::max_finite(spec.format);
      for (int i = 0; i < 20000; ++i) {
        // Next to a power of two times the maximum, where the rules part, and anywhere.
        const std::uint32_t near = numerics::float_bits(maximum) + generator() % 8 - 4;
        const std::uint32_t fraction = i % 2 == 0 ? near : generator();
        const std::uint32_t exponent = 27 + generator() % 200;
        const float amax = numerics::bits_float((fraction & 0x7FFFFFu) | exponent << 23);
        const numerics::TileScale scale = numerics::tile_scale(spec.scale, spec.format, amax);
        saturates = saturates || numerics::scaled_value(scale, amax) > maximum * (1 + 0x1p-22f);
      }
    }
    INFO(words);
    CHECK(saturates == (std::string(words) == "mx32"));
  }
}

TEST_CASE("a word is used or refused") {
  struct Row {
    const char* words;
    ErrorFields expected;
  };
  const Row rows[] = {
      {"e4m3fn/row/row", {.key = "row", .reason = "after 'row', which says the tile"}},
      {"e4m3fn/row/row/row", {.key = "row", .reason = "after 'row'"}},
      {"e4m3fn/1x128/fp32/128x128", {.key = "128x128", .reason = "after '1x128'"}},
      {"e4m3fn/mx32/1x32", {.key = "1x32", .reason = "after 'mx32'"}},
      {"e4m3fn/mx32/pow2", {.key = "pow2", .reason = "after 'mx32'"}},
      {"e4m3fn/1x128/pow2/ceil/rceil", {.key = "rceil", .reason = "after 'ceil'"}},
      {"e4m3fn/row/stochastic/toward_zero", {.key = "toward_zero", .reason = "after 'stochastic'"}},
      {"e4m3fn/row/dec_div/enc_div", {.key = "enc_div", .reason = "after 'dec_div'"}},
      {"e2m1/nv16/mae/mse", {.key = "mse", .reason = "after 'mae'"}},
      {"int8/row/expand/hadamard:16", {.key = "hadamard:16", .reason = "after 'expand'"}},
      {"e4m3fn/static:1/static:2", {.key = "static:2", .reason = "after 'static:1'"}},
      {"e4m3fn/delayed/static:2", {.key = "static:2", .reason = "after 'delayed'"}},
      {"e4m3fn/row/margin:1/margin:2", {.key = "margin:2", .reason = "after 'margin:1'"}},
      {"e4m3fn/128x128/ceil",
       {.key = "ceil", .reason = "has no effect", .accepted = "with pow2 or e8m0, or mx32"}},
      {"e4m3fn/1x128/fp32/enc_floor", {.key = "enc_floor", .reason = "has no effect"}},
      {"e4m3fn/1x128/mae",
       {.key = "mae", .reason = "has no effect", .accepted = "with nv_two_level, or nv16"}},
      {"e2m1/nv16/dec_div", {.key = "dec_div", .reason = "has no effect"}},
      {"e4m3fn/row/pow2/scale_overflow:nan",
       {.key = "scale_overflow:nan", .reason = "has no effect", .accepted = "with e8m0"}},
      {"e4m3fn/row/epsilon_mode:add", {.accepted = "with amax_epsilon above 0"}},
      {"e2m1/mx32/scale_factor:1.5",
       {.key = "scale_factor:1.5", .reason = "has no effect", .accepted = "with pow2"}},
      {"e2m1/1x32/pow2/scale_factor:3",
       {.accepted = "scale_factor:NUMBER, a number from 0.5 to 2"}},
      {"e2m1/nv16/std:3", {.key = "std:3", .reason = "has no effect"}},
      {"e2m1/1x32/std:0", {.noun = "unknown word", .key = "std:0"}},
      {"e2m1/1x32/clip_mask", {.noun = "unknown word", .key = "clip_mask"}},
      {"e4m3fn/row/dec_div/encode_limit:bf16", {.accepted = "with fp32, bf16 or e4m3 and enc_div"}},
      {"e4m3fn/row/history:4",
       {.key = "history:4", .reason = "has no effect", .accepted = "with delayed"}},
      {"e4m3fn/fp32/static:2", {.key = "fp32", .reason = "has no effect"}},
      {"e4m3fn/row/static:2", {.reason = "one number for the tensor"}},
      {"e4m3fn/row/fp32/delayed", {.reason = "one number for the tensor"}},
      {"logfmt8/1x128/pow2", {.key = "pow2", .reason = "has no effect"}},
      {"e4m3fn/1x128/expand/bf16", {.key = "bf16", .reason = "has no effect"}},
      {"e4m3fn/row/nearest", {.accepted = "scale_rounding:nearest"}},
      {"e4m3fn/row/pow2/scale_rounding:up",
       {.accepted = "scale_rounding:nearest, scale_rounding:ceil"}},
      {"e4m3fn/row/margin:17", {.accepted = "margin:NUMBER, an integer from 0 to 16"}},
      {"e4m3fn/row/margin:1.5", {.accepted = "margin:NUMBER"}},
      {"e4m3fn/row/amax_epsilon:nan", {.accepted = "amax_epsilon:NUMBER, a number from 0 to 1"}},
      {"e4m3fn/delayed/history:0", {.accepted = "from 1 to 65536"}},
      {"e4m3fn/static:inf", {.accepted = "static:NUMBER, a number from 2^-126 to 2^127"}},
      {"e4m3fn/static:", {.accepted = "static:NUMBER, a number from 2^-126 to 2^127"}},
      {"e4m3fn/row/overflow:wrap", {.accepted = "overflow:saturate, overflow:special"}},
      {"e4m3fn/tile:row", {.noun = "unknown word", .key = "tile:row"}},
      {"e2m1/nv16/stochastic:0", {.noun = "unknown word", .key = "stochastic:0"}},
      {"e2m1/nv16/stochastic:33", {.noun = "unknown word", .key = "stochastic:33"}},
      {"e2m1/nv16/nearest:8", {.noun = "unknown word", .key = "nearest:8"}},
      {"e2m1/nv16/stochastic/stochastic:8",
       {.key = "stochastic:8", .reason = "after 'stochastic'"}},
      {"e4m3fn/row/via:e5m2", {.noun = "unknown word", .key = "via:e5m2"}},
      {"e4m3fn/row/via:int16", {.noun = "unknown word", .key = "via:int16"}},
      {"e4m3fn/row/outer_scale:row",
       {.key = "outer_scale:row", .reason = "has no effect", .accepted = "with nv_two_level"}},
      {"e8m3/row", {.reason = "more than 8 bits"}},
      {"bf16/overflow:special", {.reason = "passed through"}},
  };
  for (const Row& row : rows) {
    INFO(row.words);
    check_fields(fields_thrown_by([&] { parse_quant_spec(row.words); }), row.expected);
  }
  // Words that say the default are used as well.
  CHECK(parse_quant_spec("e4m3fn/tensor/fp32/enc_div/margin:0/amax_epsilon:0") ==
        parse_quant_spec("e4m3fn/tensor"));
  CHECK(parse_quant_spec("e4m3fn/tensor/static:2") == parse_quant_spec("e4m3fn/static:2"));
}

TEST_CASE("operands of recipes are quantizers") {
  const LinearRecipe infir2 = load_recipe("infir2").linear;
  CHECK(parse_quant_spec("infir2:fprop.x") == infir2.slot(Slot::fprop_x));
  CHECK(parse_quant_spec("infir2:dgrad.w") == infir2.slot(Slot::dgrad_w));
  CHECK(parse_quant_spec("fp32:fprop.w") == parse_quant_spec("fp32"));
  CHECK(parse_quant_spec("nvfp4:wgrad.dy") == load_recipe("nvfp4").linear.slot(Slot::wgrad_dy));
  CHECK_THROWS_WITH(parse_quant_spec("infir2:x"),
                    Catch::Contains("unknown slot 'x'") && Catch::Contains("fprop.x, fprop.w"));
  CHECK_THROWS_WITH(parse_quant_spec("infir3:fprop.x"), Catch::Contains("unknown recipe 'infir3'"));
  CHECK_THROWS_WITH(parse_quant_spec("no/such.toml:fprop.x"), Catch::Contains("does not exist"));
  CHECK_THROWS_WITH(parse_quant_spec("e4m3nf/hadamard:16"), Catch::Contains("unknown format"));
  // Its codes are made from those of fprop.x, not from the matrix.
  CHECK_THROWS_WITH(parse_quant_spec("deepseek_v3:wgrad.x"),
                    Catch::Contains("requantized") && Catch::Contains("--slot wgrad.x") &&
                        Catch::Contains("e4m3fn/1x128/fp32/dec_div_recip"));
}

TEST_CASE("GEMM words are said once, and labels say the scale order") {
  GemmSpec spec = parse_gemm_spec("sm90_wgmma_fp8/promote:128/fp32/product_first/split_k:2");
  CHECK(label(spec) == "sm90_wgmma_fp8/promote:128/f32/product_first/split_k:2");
  CHECK(parse_gemm_spec(label(spec)) == spec);
  for (const char* words :
       {"sm90_bf16/fast/promote:32", "sm90_bf16/fast/fast", "sm90_bf16/bf16/fp32",
        "sm90_bf16/split_k:2/split_k:3", "sm90_bf16/automatic/epilogue"}) {
    INFO(words);
    CHECK_THROWS_WITH(parse_gemm_spec(words), Catch::Contains(" already; accepted: one of them"));
  }
  for (const char* words : {"cublaslt_h200:tensor/fast/promote", "cublaslt_h200:tensor/bf16/bf16",
                            "cublaslt_h200:1x128x1x128/split_k=2/split_k=3"}) {
    INFO(words);
    CHECK_THROWS_WITH(parse_library_call(words), Catch::Contains(" already; accepted: one of"));
  }
}

}  // namespace fp8lab
