// Stored states against the quantizers of operands, which share no code with them, and against the
// definition of wide formats.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "emulation/base/error.hpp"
#include "emulation/cpu/operations.hpp"
#include "src/config/recipe/spec_words.hpp"
#include "tests/emulation/cpu/matrix.hpp"

using namespace fp8lab;
using namespace fp8lab::test;

namespace {

/// Memory of a state of n elements.
struct Stored {
  Stored(const std::string& words, std::int64_t n)
      : spec(parse_state_spec(words)),
        codes(DType::u8, 1, n * state_code_bytes(spec)),
        scales(DType::f32, spec.tile_numbers(), std::max<std::int64_t>(stored_tiles(spec, n), 1)),
        has_scales(stored_tiles(spec, n) > 0) {}

  StoredState state() { return {spec, codes.view(), has_scales ? scales.view() : TensorView{}}; }

  QuantSpec spec;
  Matrix codes, scales;
  bool has_scales;
};

std::vector<float> loaded(Stored& stored, std::int64_t n) {
  Matrix values(DType::f32, 1, n);
  cpu::run(ops::LoadState{stored.state(), values.view()});
  std::vector<float> result;
  for (std::int64_t i = 0; i < n; ++i) result.push_back(static_cast<float>(values.at(i)));
  return result;
}

/// Gaussian-like values of 2^-20 to 1, with zeros and both signs.
Matrix gradients(std::int64_t n) {
  Matrix x = Matrix::random(DType::f32, 1, n, 7);
  for (std::int64_t i = 0; i < n; ++i) {
    x.set(i, i % 17 == 3 ? 0.0 : x.at(i) * std::exp2(-static_cast<double>((i * 37 % 101) / 5)));
  }
  return x;
}

constexpr const char* kNarrow[] = {"e4m3fn/tensor",
                                   "e4m3fn/tensor/pow2",
                                   "e4m3fn/1x128/expand",
                                   "e4m3fn/tensor/expand",
                                   "e5m2/1x128/bf16",
                                   "e5m2/tensor/pow2/stochastic",
                                   "lns8/tensor/pow2",
                                   "int8/1x64/ties_positive",
                                   "e2m1/1x32/e8m0",
                                   "e3m4/static:0.03",
                                   "e5m2"};

}  // namespace

TEST_CASE("states of at most 8 bits have the codes and values of an operand of one row") {
  const std::int64_t n = GENERATE(1, 127, 300, 9001);
  Matrix x = gradients(n);
  for (const char* words : kNarrow) {
    INFO(words << ", " << n);
    Stored stored(words, n);
    RandomKey key;
    key.seed = 11;
    key.step = 5;
    key.tensor = 3;
    cpu::run(ops::StoreState{x.view(), key, stored.state()});
    QuantizedOperand operand{parse_quant_spec(words), 1, n, {}, {}};
    Matrix codes(DType::u8, 1, n);
    Matrix scales(DType::f32, 1, operand.spec.scale_cols(n));
    operand.codes = codes.view();
    if (operand.spec.has_scale()) operand.scales = scales.view();
    operand.key = key;
    cpu::run(ops::Quantize{.source = x.view(), .operand = operand});
    CHECK(stored.codes.bytes() == codes.bytes());
    if (stored.has_scales) CHECK(stored.scales.bytes() == scales.bytes());
    Matrix values(DType::f32, 1, n);
    cpu::run(ops::Dequantize{operand, false, values.view()});
    const std::vector<float> back = loaded(stored, n);
    for (std::int64_t i = 0; i < n; ++i) {
      REQUIRE(static_cast<double>(back[static_cast<std::size_t>(i)]) == values.at(i));
    }
  }
}

TEST_CASE("wide codes are those of the codec, the low byte first") {
  const std::int64_t n = 1000;
  Matrix x = gradients(n);
  for (const char* words : {"fp16", "fp16/tensor/pow2", "e5m6/1x128", "lns16g2048/tensor/pow2",
                            "lns10g32/1x100/pow2", "fp16/static:0.25"}) {
    INFO(words);
    Stored stored(words, n);
    cpu::run(ops::StoreState{x.view(), {}, stored.state()});
    const std::vector<float> back = loaded(stored, n);
    const std::int64_t tile = state_tile(stored.spec, n);
    for (std::int64_t i = 0; i < n; ++i) {
      double amax = 0;
      for (std::int64_t k = i / tile * tile; k < std::min(n, (i / tile + 1) * tile); ++k) {
        amax = std::max(amax, std::abs(x.at(k)));
      }
      const double fixed =
          stored.spec.has_scale() ? static_cast<double>(stored.spec.static_scale) : 1.0;
      numerics::TileScale scale{static_cast<float>(fixed), static_cast<float>(1.0 / fixed), false};
      if (stored.has_scales) {
        scale =
            numerics::tile_scale(stored.spec.scale, stored.spec.format, static_cast<float>(amax));
        REQUIRE(stored.scales.at(i / tile) == static_cast<double>(scale.decode));
      }
      const auto value = static_cast<float>(x.at(i));
      const std::uint32_t code =
          numerics::encode(stored.spec.format, numerics::float_bits(value * scale.multiplier));
      REQUIRE(stored.codes.at(2 * i) == code % 256);
      REQUIRE(stored.codes.at(2 * i + 1) == code / 256);
      REQUIRE(back[static_cast<std::size_t>(i)] ==
              scale.decode * numerics::decode(stored.spec.format, code));
    }
  }
}

TEST_CASE("a logarithmic state of 16 bits is within half a step of 1/2048 octave") {
  const std::int64_t n = 4000;
  Matrix x = gradients(n);
  Stored stored("lns16g2048/tensor/pow2", n);
  cpu::run(ops::StoreState{x.view(), {}, stored.state()});
  const std::vector<float> back = loaded(stored, n);
  int inside = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double value = x.at(i),
                 stored_value = static_cast<double>(back[static_cast<std::size_t>(i)]);
    if (value == 0.0) {
      REQUIRE(stored_value == 0.0);
    } else if (std::abs(value) > 0x1p-14) {  // 16 octaves below 1
      REQUIRE(std::abs(std::log2(stored_value / value)) <= (0.5 + 1e-3) / 2048);
      ++inside;
    }
  }
  CHECK(inside > n / 2);
}

TEST_CASE("cleared memory is a state of zeros") {
  for (const char* words : {"e4m3fn/tensor", "e4m3fn/1x128/expand", "fp16/tensor/pow2",
                            "lns16g2048/tensor", "int8/1x64", "e5m2", "e5m6/1x128"}) {
    INFO(words);
    Stored stored(words, 200);
    for (const float value : loaded(stored, 200)) REQUIRE(numerics::float_bits(value) == 0u);
  }
}

TEST_CASE("an outlier costs the other elements of its tile and no others") {
  const std::int64_t n = 384;
  Matrix x = Matrix::random(DType::f32, 1, n, 3);
  Stored before("e4m3fn/1x128", n), after("e4m3fn/1x128", n);
  cpu::run(ops::StoreState{x.view(), {}, before.state()});
  x.set(130, 1e6);
  cpu::run(ops::StoreState{x.view(), {}, after.state()});
  int changed = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool differs = before.codes.at(i) != after.codes.at(i);
    if (i / 128 != 1) REQUIRE_FALSE(differs);
    changed += differs ? 1 : 0;
  }
  CHECK(changed > 100);
}

TEST_CASE("plain states are rounded like any store") {
  Matrix x = difficult(DType::f32, 1, 5000, 9);
  Matrix stored(DType::bf16, 1, 5000), copied(DType::bf16, 1, 5000);
  cpu::run(ops::StoreState{x.view(), {}, {plain_state(DType::bf16), stored.view(), {}}});
  cpu::run(ops::Copy{x.view(), copied.view()});
  CHECK(stored.bytes() == copied.bytes());
}

TEST_CASE("states that do not fit are refused") {
  Matrix x(DType::f32, 1, 256);
  Stored stored("fp16/1x128", 256);
  StoredState state = stored.state();
  const auto store = [&] { cpu::run(ops::StoreState{x.view(), {}, state}); };
  CHECK_NOTHROW(store());
  state.codes = stored.codes.view().columns(0, 256);
  CHECK_THROWS_WITH(store(), Catch::Contains("codes"));
  state = stored.state();
  state.scales = stored.scales.view().columns(0, 1);
  CHECK_THROWS_WITH(store(), Catch::Contains("scales"));
  state = stored.state();
  state.spec.scale_source = ScaleSource::delayed;
  CHECK_THROWS_WITH(store(), Catch::Contains("delayed"));
}
