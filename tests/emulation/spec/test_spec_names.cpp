#include <catch2/catch.hpp>

#include "emulation/spec/gemm_spec.hpp"
#include "emulation/spec/quant_spec.hpp"

namespace fp8lab {

TEST_CASE("format names are inverse to each other") {
  for (const numerics::NamedFormat& named : numerics::kNamedFormats) {
    CHECK(format_name(named.format) == named.name);
    CHECK(format_by_name(named.name) == named.format);
  }
  for (const char* name : {"e5m6", "e8m3", "e4m3b11", "e4m3fnb11", "e3m2fn", "e5m0f", "e3m4ieee",
                           "e3m4f", "e4m3fnuzb11", "e3m2fnuz", "e3m4ieeeb2", "e3m4fb4", "e2m1ieee",
                           "e4m3fb8", "e5m2fb16", "int5", "lns8g16", "lns6g1", "logfmt6"}) {
    const auto format = format_by_name(name);
    REQUIRE(format);
    CHECK(format_name(*format) == name);
  }
  CHECK(format_by_name("e4m3fn")->max_finite_code() == 0x7E);
  CHECK(format_by_name("e4m3")->max_finite_code() == 0x77);  // 240
  CHECK(format_by_name("e4m3") == format_by_name("e4m3_240"));
  CHECK(format_by_name("e4m3b7") == format_by_name("e4m3_240"));
  CHECK(format_by_name("e5m2ieee") == numerics::kE5M2);
  CHECK(format_by_name("int8") == numerics::kInt8);
  CHECK(format_by_name("lns8g8") == numerics::kLns8);
  for (const char* name : {"lns10g32", "lns16g2048", "lns9g2", "lns16g256"}) {
    REQUIRE(format_by_name(name));
    CHECK(format_name(*format_by_name(name)) == name);
  }
  for (const char* name : {"lns17g2048", "lns16g4096", "lns16g128"}) {  // the last of 256 octaves
    CHECK_FALSE(format_by_name(name));
  }
  CHECK(format_by_name("e5m6")->bias == 15);
  CHECK(format_by_name("e3m2fnuz")->bias == 4);
  CHECK(format_by_name("e3m2fnuz") == format_by_name("e3m2fnuzb4"));
  CHECK(format_by_name("e5m6")->specials == numerics::SpecialValues::ieee);
}

TEST_CASE("other format names are refused") {
  for (const char* name :
       {"",           "e",        "e4",       "m3",     "e0m3",    "e9m3",
        "e4m24",      "e4m3x",    "e4m3fnb",  "e5m0",   "e8m23b3", "e1m0f0",
        "e4m3ieeefn", "int",      "int2",     "int9",   "int8b",   "lns",
        "lns8g",      "lns8g3",   "lns8g128", "lns2g1", "lns4g16", "logfmt",
        "logfmt2",    "logfmt10", "e 4m3",    "e-4m3",  "fp8",     "e99999999999999999999m1",
        "e2m1b255"}) {
    INFO(name);
    CHECK_FALSE(format_by_name(name).has_value());
  }
}

TEST_CASE("tile names are inverse to each other") {
  for (const char* name : {"tensor", "row", "1x128", "128x128", "3x7"}) {
    const auto tile = tile_from_name(name);
    REQUIRE(tile);
    CHECK(tile_name(*tile) == name);
  }
  CHECK(tile_from_name("tensor") == TileShape{0, 0});
  CHECK(tile_from_name("row") == TileShape{1, 0});
  for (const char* name : {"", "x", "0x4", "4x0", "1x", "x128", "1x128 ", "-1x4", "rows", "1X2"}) {
    INFO(name);
    CHECK_FALSE(tile_from_name(name).has_value());
  }
}

TEST_CASE("accumulator and schedule names are inverse to each other") {
  for (const auto& accumulator :
       {Accumulator::sm90_wgmma_fp8, Accumulator::sm90_mma_sync_fp8, Accumulator::sm90_bf16,
        Accumulator::ideal_fp32, Accumulator::ideal_exact}) {
    CHECK(accumulator_by_name(accumulator_name(accumulator)) == accumulator);
  }
  CHECK_FALSE(accumulator_by_name("sm100").has_value());
  GemmSpec spec;
  CHECK(schedule_name(spec) == "fast");
  spec.schedule = Schedule::promote;
  spec.promote_interval = 64;
  CHECK(schedule_name(spec) == "promote:64");
  CHECK(schedule_from_name("promote:64") == ScheduleChoice{Schedule::promote, 64});
  CHECK(schedule_from_name("promote") == ScheduleChoice{Schedule::promote, 128});
  CHECK(schedule_from_name("fast") == ScheduleChoice{});
  for (const char* name : {"", "promote:", "promote:0", "promote:-1", "promote:1x", "promoted"}) {
    INFO(name);
    CHECK_FALSE(schedule_from_name(name).has_value());
  }
  spec.split_k = 2;
  CHECK(label(spec) == "sm90_bf16/promote:64/bf16/split_k:2");
  spec.scale_order = ScaleOrder::epilogue;
  CHECK(label(spec) == "sm90_bf16/promote:64/bf16/epilogue/split_k:2");
}

TEST_CASE("rounding names are inverse to each other") {
  using numerics::Rounding;
  for (const char* name : {"nearest", "ties_down", "ties_positive", "toward_zero", "stochastic",
                           "stochastic:1", "stochastic:8", "stochastic:32"}) {
    const std::optional<RoundingChoice> choice = rounding_from_name(name);
    REQUIRE(choice);
    CHECK(rounding_name(choice->rounding, choice->random_bits) == name);
  }
  CHECK(rounding_from_name("stochastic:8") == RoundingChoice{Rounding::stochastic, 8});
  for (const char* name : {"", "stochastic:", "stochastic:0", "stochastic:33", "stochastic:8x",
                           "stochastic:-1", "nearest:8", "Stochastic"}) {
    CHECK_FALSE(rounding_from_name(name));
  }
}

TEST_CASE("labels and the cost of scales") {
  QuantSpec spec;
  CHECK(label(spec) == "bf16");
  CHECK(scale_bits_per_element(spec, 4, 4) == 0.0);
  spec.format = numerics::kE4M3;
  spec.tile = {1, 128};
  spec.scale.format = numerics::ScaleFormat::pow2;
  spec.scale_source = ScaleSource::current;
  spec.scale.rounding = numerics::ScaleRounding::enc_floor;
  CHECK(label(spec) == "e4m3fn/1x128/pow2/enc_floor");
  CHECK(scale_bits_per_element(spec, 10, 256) == 0.25);
  CHECK(scale_bits_per_element(spec, 10, 192) == 32.0 * 20 / 1920);  // short tiles cost as much
  spec.scale.format = numerics::ScaleFormat::e8m0;
  spec.tile = {1, 32};
  CHECK(scale_bits_per_element(spec, 10, 256) == 0.25);
  spec.scale.format = numerics::ScaleFormat::nv_two_level;
  spec.tile = {1, 16};
  CHECK(label(spec) == "e4m3fn/1x16/nv_two_level");
  CHECK(scale_bits_per_element(spec, 10, 32) == 0.5 + 32.0 / 320);
  spec.scale.outer = numerics::OuterScale::row;
  CHECK(label(spec) == "e4m3fn/1x16/nv_two_level/outer_scale:row");
  CHECK(scale_bits_per_element(spec, 10, 32) == 0.5 + 32.0 / 32);
  spec.scale.outer = numerics::OuterScale::tensor;
  spec.scale.format = numerics::ScaleFormat::bf16;
  CHECK(scale_bits_per_element(spec, 10, 32) == 1.0);
  spec.scale.format = numerics::ScaleFormat::e8m0;
  spec.tile = {};
  spec.scale_source = ScaleSource::delayed;
  spec.rounding = numerics::Rounding::stochastic;
  CHECK(label(spec) == "e4m3fn/tensor/e8m0/enc_floor/delayed/stochastic");
  CHECK(scale_bits_per_element(spec, 2, 4) == 1.0);
}

}  // namespace fp8lab
